"""Sums over the processes of a distributed training; what one process has where it is alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def is_distributed() -> bool:
    """Tell whether several processes train together."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def over_processes(values: Tensor) -> Tensor:
    """Sum a tensor over all processes, with gradients; every process must call it."""
    if not is_distributed():
        return values
    total: Tensor = _Total.apply(values)
    return total


class _Total(torch.autograd.Function):
    """A sum whose gradient is the sum of the gradients of all processes."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return _reduce(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return over_processes(gradient)  # which has a gradient too


def _reduce(values: Tensor) -> Tensor:
    total = values.clone()
    torch.distributed.all_reduce(total)
    return total
