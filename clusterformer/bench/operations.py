"""Floating-point operations of a function, counted by PyTorch as they are dispatched."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import clusterformer.kernels.chunk_attention  # noqa: F401  defines the operations counted here

Shape = torch.Size


def count(step: Callable[[], object]) -> int:
    """Operations of one call: a multiplication and an addition are two."""
    ours, aten = torch.ops.clusterformer, torch.ops.aten
    formulas: dict[Any, Any] = {
        ours.chunk_attention: lambda *shapes, **_: 2 * _blocks(*shapes),
        ours.chunk_attention_backward: lambda _, *shapes, **__: 5 * _blocks(*shapes),
        aten._scaled_dot_product_flash_attention_for_cpu: lambda *shapes, **_: 2 * _full(*shapes),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda _, *shapes, **__: 5 * _full(*shapes)
        ),
    }
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        step()
    return int(counter.get_total_flops())


def _full(q: Shape, k: Shape, *_: Any) -> int:
    """One product of (B, H, N, D) queries with (B, H, M, D) keys."""
    return 2 * math.prod(q) * k[-2]


def _blocks(
    q: Shape, k: Shape, v: Shape, q_extra: Shape, k_extra: Shape,
    places: Shape, filled: Shape, mask: Shape, *_: Any,
) -> int:  # fmt: skip
    """One product of the queries in all slots with the keys in their windows.

    q is (..., H, D), q_extra (..., P), filled (..., G, S), mask (..., R * S).
    """
    return 2 * math.prod(filled) * mask[-1] * q[-2] * (q[-1] + q_extra[-1])
