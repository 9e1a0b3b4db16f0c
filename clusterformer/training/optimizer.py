"""The optimiser of a run, and the number of steps that it will make."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer

from clusterformer.errors import InputError


def make_adamw(
    model: LightningModule, *, lr: float, weight_decay: float, betas: tuple[float, float]
) -> torch.optim.AdamW:
    """Make AdamW for the weights of a model that are trained.

    Args:
        model: Model, attached to its trainer.
        lr: Peak learning rate.
        weight_decay: Weight decay of linear layers' weights; all others have none.
        betas: Decays of the moving averages of the gradient and of its square.
    """
    decayed = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if id(p) in decayed]},
        {"params": [p for p in parameters if id(p) not in decayed], "weight_decay": 0.0},
    ]
    # Fused takes an eighth of the time on a CPU, but cannot be clipped under a loss scaler.
    scaled = model.trainer.precision == "16-mixed"
    optimizer = torch.optim.AdamW(
        groups, lr=lr, weight_decay=weight_decay, betas=betas, fused=not scaled
    )
    # Lightning takes every fused optimizer under autocast for one that has a scaler to undo.
    optimizer._step_supports_amp_scaling = False
    return optimizer


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


def check_restored(optimizer: Optimizer) -> None:
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
