"""Floating-point operations of a function, counted by PyTorch as it dispatches them.

B batch   H heads   N queries   M keys   D head width
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS, CustomOpDef
from torch.utils.flop_counter import FlopCounterMode


def count_flops(step: Callable[[], object]) -> int:
    """Count the operations of one call; a multiplication and an addition are two.

    Operations of our own run their bodies once more, in which they are counted.
    """
    aten = torch.ops.aten
    formulas: dict[Any, Any] = {
        aten._scaled_dot_product_flash_attention_for_cpu: (
            lambda *shapes, **_: 2 * _full_product(*shapes)
        ),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda _, *shapes, **__: 5 * _full_product(*shapes)
        ),
    }
    for name, operation in OPDEFS.items():
        if name.startswith("clusterformer::"):
            formulas[operation._opoverload.overloadpacket] = _formula(operation)
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        step()
    return int(counter.get_total_flops())


def _formula(operation: CustomOpDef) -> Callable[..., int]:
    def count(*args: Any, out_val: object, **options: Any) -> int:
        return count_flops(partial(operation._init_fn, *args, **options))

    count._get_raw = True  # type: ignore[attr-defined]  # tensors, not their shapes
    return count


def _full_product(q: torch.Size, k: torch.Size, *_: Any) -> int:
    """Operations of one product of queries (B, H, N, D) with keys (B, H, M, D)."""
    return 2 * math.prod(q) * k[-2]
