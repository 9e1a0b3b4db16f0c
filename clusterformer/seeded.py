"""Random numbers that are the same on every device."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor


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
