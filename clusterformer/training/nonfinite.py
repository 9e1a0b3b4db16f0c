"""Steps whose gradients are not finite: which may be skipped, where NaN or infinity is first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from clusterformer.errors import InputError
from clusterformer.training.checkpoints import last_good

MIN_SCALE = 1e-4
"""Smallest scale of the loss in fp16, as in fairseq: a training that needs less learns nothing."""


class TrainedBatch(NamedTuple):
    """A batch of a step, one of `accumulate_grad_batches`.

    Attributes:
        batch: The batch.
        losses: Losses of the batch over all processes, of shape () each, those with a weight.
    """

    batch: Any
    losses: list[Tensor]

    def is_finite(self) -> bool:
        return all(math.isfinite(loss) for loss in self.losses)


def skips_step(trainer: Trainer, trained: Sequence[TrainedBatch]) -> bool:
    """Tell whether fp16's loss scaler leaves out this step, and the next may have a gradient.

    A smaller scale mends gradients beyond float16, but neither a loss that is not finite nor
    gradients that are not even at a small scale: it would skip all steps to come.

    Args:
        trainer: Trainer, at a step whose gradients are not finite.
        trained: All batches of the step.
    """
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is None or scaler.get_scale() < MIN_SCALE:
        return False
    return all(batch.is_finite() for batch in trained)


def first_nonfinite(network: nn.Module, batch: Any) -> str:
    """Name the first part of `network` whose weights, output or gradients hold NaN or infinity.

    Args:
        network: Network with the gradients of the failed step.
        batch: Batch of that step.

    Returns:
        Words for a message, such as "the output of encoder.layers.1.norm".
    """
    for name, parameter in network.named_parameters():
        if not _finite(parameter):
            return f"the weights {name}"
    found: list[str] = []
    handles: list[RemovableHandle] = []
    for name, module in network.named_modules():
        if not any(module.children()):

            def look(_module: nn.Module, _args: Any, output: Any, name: str = name) -> None:
                if not all(_finite(tensor) for tensor in _tensors(output)):
                    found.append(name)

            handles.append(module.register_forward_hook(look))
    with torch.no_grad():
        network(batch)
    for handle in handles:
        handle.remove()
    # outputs differ between processes, which must all gather the same divided gradients
    gradients = [(name, p.grad) for name, p in network.named_parameters() if p.grad is not None]
    spoilt = next((name for name, grad in reversed(gradients) if not _finite(grad)), None)
    if found:
        return f"the output of {found[0]}"
    return f"the gradient of {spoilt}" if spoilt else "the loss"


def nonfinite_error(
    model: LightningModule, network: nn.Module, trained: Sequence[TrainedBatch]
) -> InputError:
    """Make the error of a loss that is not finite; the first of several processes tells it.

    Args:
        model: Model in training.
        network: Its network, with the gradients of the failed step still in place.
        trained: All batches of the failed step.
    """
    trainer = model.trainer
    spoilt = (one for one in trained if not one.is_finite())
    batch = next(spoilt, trained[-1]).batch
    with trainer.precision_plugin.forward_context():
        found = [first_nonfinite(network, batch)]
    if trainer.world_size > 1:
        own, found = found[0], [""] * trainer.world_size
        torch.distributed.all_gather_object(found, own)
        if model.global_rank:
            raise SystemExit(2)
    # gradients are those of all processes, weights and outputs tell whose batch it was
    found.sort(key=lambda where: where.startswith("the gradient"))
    advice = "try a smaller model.lr or a longer model.warmup"
    if trainer.precision == "16-mixed":
        advice += ", or trainer.precision bf16-mixed: float16 ends at 65,504"
    if trainer.precision == "16-true":
        advice = (
            "float16 rounds the optimiser's means of squared gradients to 0, by which steps are "
            "divided; set trainer.precision to 16-mixed or bf16-true"
        )
    folders = [getattr(callback, "dirpath", None) for callback in trainer.checkpoint_callbacks]
    return InputError(
        f"the loss is not finite at step {model.global_step} (epoch {model.current_epoch}): "
        f"NaN or infinity first in {found[0]}; last good checkpoint: "
        f"{last_good(*filter(None, folders))}; {advice}"
    )


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, (tuple, list)):
        return [tensor for part in output for tensor in _tensors(part)]
    return []


def _finite(tensor: Tensor) -> bool:
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())
