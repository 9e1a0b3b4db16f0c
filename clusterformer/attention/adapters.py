"""Adapters of PEFT inside a mechanism: it reads the weights themselves, and goes past them."""

from __future__ import annotations

import warnings
from functools import cache

import torch
from torch import nn


def warn_of_idle_adapters(core: nn.Module, name: str) -> None:
    """Warn once if a mechanism has adapters, which then learn nothing.

    Args:
        core: Mechanism that is trained.
        name: Name by which PEFT trains it instead.
    """
    if torch.compiler.is_compiling():
        return
    if any(hasattr(part, "base_layer") for part in core.modules()):  # PEFT's name
        _warn_once(name)


@cache
def _warn_once(name: str) -> None:
    warnings.warn(
        "adapters inside the attention mechanism learn nothing, as after PEFT's "
        f'target_modules="all-linear"; add modules_to_save=["{name}"] to train the mechanism',
        stacklevel=4,
    )
