"""Rotary positions: queries and keys rotated by angles that grow with their position.

B batch   H heads   N tokens   D head width
"""

import torch
from torch import Tensor


def rotate(x: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    """Rotate each pair of entries by position * base^(-2 i / D) (RoFormer, 2021, eq. 34).

    The product of a rotated query and key depends only on the distance of their positions.
    Entry i is paired with entry i + D / 2.

    Args:
        x: Queries or keys, (B, H, N, D), D even.
        positions: (N,) or (B, 1, N) integers.
        base: Longest wavelength divided by 2 pi, in tokens.

    Returns:
        Like x, in its dtype; the angles are float32.
    """
    half = x.shape[-1] // 2
    exponents = torch.arange(half, device=x.device, dtype=torch.float32) / half
    angles = positions[..., None] * base**-exponents
    cosine, sine = angles.cos(), angles.sin()
    first, second = x.float().chunk(2, -1)
    rotated = (first * cosine - second * sine, first * sine + second * cosine)
    return torch.cat(rotated, -1).to(x.dtype)
