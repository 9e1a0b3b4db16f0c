"""As many colours as clusters, each as far from the others as the eye allows.

C colours
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from clusterformer.plots.style import PALETTE

_STEPS = 18  # of each of red, green and blue in the candidates
_LIGHTNESS = 25.0, 82.0  # 0..100, visible on white and lighter than the ink of the numbers
_MIN_CHROMA = 20.0  # more colourful than grey


@functools.cache
def distinct_colors(count: int) -> NDArray[np.float64]:
    """Choose colours that differ most, the first of them those of PALETTE.

    Each is, of a grid of colours that are neither light, dark nor grey, the one farthest from those
    before it in CIELAB, where distances are differences that people see.

    Args:
        count: C.

    Returns:
        Red, green and blue in 0..1, (C, 3); colours repeat beyond some thousands.
    """
    levels = np.linspace(0, 1, _STEPS)
    candidates = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(-1, 3)
    seen = to_lab(candidates)
    low, high = _LIGHTNESS
    keep = (low <= seen[:, 0]) & (seen[:, 0] <= high) & (np.hypot(*seen[:, 1:].T) >= _MIN_CHROMA)
    candidates, seen = candidates[keep], seen[keep]
    chosen = [np.array([int(name[i : i + 2], 16) / 255 for i in (1, 3, 5)]) for name in PALETTE]
    distance = np.full(len(seen), np.inf)
    for color in chosen:
        distance = np.minimum(distance, np.linalg.norm(seen - to_lab(color), axis=1))
    for _ in range(min(count, len(seen)) - len(chosen)):
        farthest = int(distance.argmax())
        chosen.append(candidates[farthest])
        distance = np.minimum(distance, np.linalg.norm(seen - seen[farthest], axis=1))
    return np.array(chosen)[np.arange(count) % len(chosen)]


def to_lab(colors: NDArray) -> NDArray[np.float64]:
    """Convert sRGB (any, 3) in 0..1 to CIELAB: lightness 0..100, green-red, blue-yellow."""
    linear = np.where(colors <= 0.04045, colors / 12.92, ((colors + 0.055) / 1.055) ** 2.4)
    matrix = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = linear @ np.array(matrix).T / [0.9505, 1.0, 1.0890]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    x, y, z = np.moveaxis(f, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)
