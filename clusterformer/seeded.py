"""Random numbers that are the same on every device."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn


def draw_seeded(seed: int, draw: Callable[[Generator], Tensor]) -> Tensor:
    """Draw on the CPU, and move to the device where tensors are made by default.

    Inside `with torch.device(...)`, where Lightning and users make modules, a generator of the CPU
    is refused, and one of that device would give other numbers.

    Args:
        seed: Seed of the generator.
        draw: Function that makes the tensor with a generator.
    """
    with torch.device("cpu"):
        drawn = draw(Generator().manual_seed(seed))
    return drawn.to(torch.empty(0).device)


def register_drawn(module: nn.Module, name: str, drawn: Tensor) -> None:
    """Register a buffer that a seed fixes; a state dict without it leaves it as drawn.

    So a mechanism without weights takes those of a model that was trained with another one.
    """
    module.register_buffer(name, drawn)
    module.register_load_state_dict_pre_hook(partial(_keep_drawn, name))


def _keep_drawn(
    name: str, module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any
) -> None:
    state_dict.setdefault(prefix + name, getattr(module, name))
