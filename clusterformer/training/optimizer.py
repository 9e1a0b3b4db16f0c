"""The optimiser of a run, and the number of steps that it will make."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from clusterformer.errors import InputError
from clusterformer.models.pretrained import PretrainedEncoder
from clusterformer.training.schedule import Schedule, factor, warmup_steps

OptimizerName = Literal["AdamW", "RAdam"]
"""AdamW, or RAdam (Liu et al., 2020), which corrects the first steps; weight decay is decoupled."""


def make_optimizer(
    model: nn.Module,
    name: OptimizerName = "AdamW",
    *,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float],
    pretrained_lr: float,
    fused: bool = True,
) -> Optimizer:
    """Make the optimiser for the weights of a model that are trained.

    Args:
        model: Model with its network.
        name: The optimiser.
        lr: Peak learning rate.
        weight_decay: Weight decay of linear layers' weights; all others have none.
        betas: Decays of the moving averages of the gradient and of its square.
        pretrained_lr: Peak learning rate of weights that were trained before.
        fused: Whether AdamW updates all weights at once: an eighth of the time on a CPU.
    """
    decayed = {id(module.weight) for module in model.modules() if _is_linear(module)}
    encoders = (part for part in model.modules() if isinstance(part, PretrainedEncoder))
    before = {id(p) for encoder in encoders for p in encoder.pretrained_parameters()}
    groups: list[dict[str, Any]] = []
    for old in (False, True) if before else (False,):
        weights = [p for p in model.parameters() if p.requires_grad and (id(p) in before) == old]
        rate = pretrained_lr if old else lr
        groups += [
            {"params": [p for p in weights if id(p) in decayed], "lr": rate},
            {
                "params": [p for p in weights if id(p) not in decayed],
                "lr": rate,
                "weight_decay": 0.0,
            },
        ]
    if name == "RAdam":
        return torch.optim.RAdam(
            groups, lr=lr, weight_decay=weight_decay, betas=betas, decoupled_weight_decay=True
        )
    optimizer = torch.optim.AdamW(
        groups, lr=lr, weight_decay=weight_decay, betas=betas, fused=fused
    )
    # Lightning takes every fused optimizer under autocast for one that has a scaler to undo.
    optimizer._step_supports_amp_scaling = False
    return optimizer


def _is_linear(module: nn.Module) -> bool:
    """Tell whether a module is a linear layer: ours, or the one that GPT-2 has in transformers."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def plan_schedule(
    optimizer: Optimizer, trainer: Trainer, schedule: Schedule, *, warmup: int | float, floor: float
) -> OptimizerLRScheduler:
    """Give an optimiser its schedule, both as Lightning takes them.

    Args:
        optimizer: The optimiser.
        trainer: Trainer, about to train.
        schedule: Schedule after the warm-up.
        warmup: Number of steps of the warm-up, or a share of all steps.
        floor: Share of the peak at which the schedule "cosine" ends.

    Raises:
        InputError: for options that do not fit together.
    """
    # counting the steps of an epoch plans its batches: only where the schedule needs it
    needed = schedule == "cosine" or 0 < warmup < 1
    steps = step_limit(trainer) if needed else None
    rate = factor(schedule, warmup_steps(warmup, steps), steps, floor)
    scheduler = LambdaLR(optimizer, rate)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def gradient_norm(model: LightningModule) -> Tensor:
    """Norm of the gradients of all weights, which all processes call."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if isinstance(norm, DTensor):  # of sharded weights
        return norm.full_tensor()
    return model.trainer.strategy.reduce(norm, reduce_op="mean")


def step_limit(trainer: Trainer) -> int | None:
    """Number of steps of the whole training; None if no end is set."""
    # Not trainer.estimated_stepping_batches: it makes the loader before progress is restored.
    limits = []
    if trainer.max_steps > 0:
        limits.append(trainer.max_steps)
    if (trainer.max_epochs or -1) > 0:
        batches: float = len(trainer.datamodule.train_dataloader())  # type: ignore[attr-defined]
        limit = trainer.limit_train_batches
        batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
        epoch = math.ceil(batches / trainer.accumulate_grad_batches)
        limits.append(epoch * (trainer.max_epochs or 0))
    return min(limits) if limits else None


def _check_restored(optimizer: Optimizer) -> None:
    """Refuse the state of an optimizer, from a checkpoint, that is not of its weights.

    Raises:
        InputError: if a value is neither a number nor of the shape of its weight.
    """
    for weight, state in optimizer.state.items():
        for name, value in state.items():
            if not isinstance(value, Tensor) or value.shape not in (weight.shape, ()):
                found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise InputError(
                    f"the checkpoint does not fit the model: {name} of the optimizer is {found}, "
                    f"allowed is {tuple(weight.shape)}"
                )


def apply_options(scheduler: LambdaLR, lr: float, pretrained_lr: float) -> None:
    """Give the groups of `make_optimizer` the options of this run, at the step reached.

    A checkpoint has those of the run before; AdamW and RAdam can take over from each other.

    Raises:
        InputError: if the state of the optimizer, from a checkpoint, is not of its weights.
    """
    _check_restored(scheduler.optimizer)
    optimizer, rates = scheduler.optimizer, [lr, lr, pretrained_lr, pretrained_lr]
    scheduler.base_lrs = [*rates[: len(scheduler.base_lrs)]]
    factors = (function(scheduler.last_epoch) for function in scheduler.lr_lambdas)
    for number, (group, rate, share) in enumerate(
        zip(optimizer.param_groups, scheduler.base_lrs, factors, strict=True)
    ):
        group.update(optimizer.defaults, initial_lr=rate, lr=rate * share)
        if number % 2:  # the weights of a pair of groups that have no decay
            group["weight_decay"] = 0.0
