"""Directions of vectors: they are compared by the cosine of the angle between them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_SHORTEST = 1e-6  # the gradient of a direction is up to 1 / length times that of its vector


def unit_vectors(x: Tensor) -> Tensor:
    """Divide vectors (..., D) by their lengths; those of 1e-6 and shorter become 0.

    They have no gradient, then. `torch.nn.functional.normalize`, which is the same for all others,
    multiplies the gradient of a vector of zeros by 1e12.
    """
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / F.threshold(length, _SHORTEST, torch.inf)  # no more launches than `normalize`
