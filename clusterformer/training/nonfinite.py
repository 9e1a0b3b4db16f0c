"""Where a loss stopped being a number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


def first_nonfinite(network: nn.Module, batch: Any) -> str:
    """Name the first part of `network` whose weights, output or gradients hold NaN or infinity.

    Args:
        network: With the gradients of the failed step still in place.
        batch: What it was given.

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
    if found:
        return f"the output of {found[0]}"
    for name, parameter in reversed(list(network.named_parameters())):
        if parameter.grad is not None and not _finite(parameter.grad):
            return f"the gradient of {name}"
    return "the loss"


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, (tuple, list)):
        return [tensor for part in output for tensor in _tensors(part)]
    return []


def _finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())
