"""Floating-point operations of a function, counted by PyTorch as it dispatches them.

B batch   H heads   N queries   M keys   D head width   P extra columns of queries and keys
G blocks   S slots of a block   R blocks in a window
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import clusterformer.kernels.chunk_attention  # noqa: F401  defines the operations counted here
from clusterformer.kernels.causal_attention import STRIP


def count_flops(step: Callable[[], object]) -> int:
    """Count the operations of one call; a multiplication and an addition are two."""
    ours, aten = torch.ops.clusterformer, torch.ops.aten
    formulas: dict[Any, Any] = {
        ours.chunk_attention: lambda *shapes, **_: 2 * _product_in_blocks(*shapes),
        ours.chunk_attention_backward: lambda _, *shapes, **__: 5 * _product_in_blocks(*shapes),
        ours.causal_attention: lambda *shapes, **_: 2 * _causal_product(*shapes),
        ours.causal_attention_backward: lambda _, *shapes, **__: 5 * _causal_product(*shapes),
        aten._scaled_dot_product_flash_attention_for_cpu: (
            lambda *shapes, **_: 2 * _full_product(*shapes)
        ),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda _, *shapes, **__: 5 * _full_product(*shapes)
        ),
    }
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        step()
    return int(counter.get_total_flops())


def _full_product(q: torch.Size, k: torch.Size, *_: Any) -> int:
    """Operations of one product of queries (B, H, N, D) with keys (B, H, M, D)."""
    return 2 * math.prod(q) * k[-2]


def _causal_product(q: torch.Size, *_: Any) -> int:
    """Operations of one product of queries (B, H, N, D), in strips, with the keys up to a strip."""
    strips, rest = divmod(q[-2], STRIP)
    keys = STRIP * STRIP * strips * (strips + 1) // 2 + rest * q[-2]
    return 2 * math.prod(q[:-2]) * q[-1] * keys


def _product_in_blocks(
    q: torch.Size, k: torch.Size, v: torch.Size, q_extra: torch.Size, k_extra: torch.Size,
    members: torch.Size, filled: torch.Size, mask: torch.Size, *_: Any,
) -> int:  # fmt: skip
    """Operations of one product of the queries in all slots with the keys in their windows.

    q is (..., H, D), q_extra (..., P), filled (..., G, S), mask (..., R * S).
    """
    return 2 * math.prod(filled) * mask[-1] * q[-2] * (q[-1] + q_extra[-1])
