"""Rotary positions: queries and keys turned by angles that grow with their place.

B batch   H heads   N tokens   D head width
"""

import torch
from torch import Tensor


def rotate(x: Tensor, places: Tensor, base: float = 10_000.0) -> Tensor:
    """Turn each pair of entries by place * base^(-2 i / D) (RoFormer, Su et al., 2021, eq. 34).

    The product of a turned query and a turned key depends on their distance, not on their places.
    Entry i is paired with entry i + D / 2.

    Args:
        x: Queries or keys, (B, H, N, D), D even.
        places: (N,) or (B, 1, N) integers.
        base: Longest wavelength over 2 pi, tokens.

    Returns:
        Like x, in its dtype; the angles are float32.
    """
    half = x.shape[-1] // 2
    exponents = torch.arange(half, device=x.device, dtype=torch.float32) / half
    angles = places[..., None] * base**-exponents
    cosine, sine = angles.cos(), angles.sin()
    first, second = x.float().chunk(2, -1)
    turned = (first * cosine - second * sine, first * sine + second * cosine)
    return torch.cat(turned, -1).to(x.dtype)
