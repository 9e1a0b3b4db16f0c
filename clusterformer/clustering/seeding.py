"""Where a clustering starts.

B batch   N points   C clusters
"""

import torch
from torch import Tensor

ROUNDS = 4
"""How often the chances of the others are raised when some points are certain."""

_TINY = torch.finfo(torch.float32).tiny


def seeds(weights: Tensor, num_clusters: int, offset: Tensor | float) -> Tensor:
    """Points to start from, drawn with chances in proportion to their weights.

    Systematic sampling: equal steps along the cumulative chances, so the starts spread over the
    sequence and one number holds all the randomness. No point's chance exceeds 1; where there are
    no more points than clusters, every point starts a cluster.

    Args:
        weights: (B, N) float32, at least 0; 0 at padding.
        num_clusters: C.
        offset: Where in its step each sample stands, 0..1: a number or (C,).

    Returns:
        (B, C) integer. Every one is of a point with a weight, if there is any.
    """
    real = weights > 0
    certain = real & (real.sum(-1, keepdim=True) <= num_clusters)
    for _ in range(ROUNDS):
        rest = weights.masked_fill(certain, 0.0)
        left = num_clusters - certain.sum(-1, keepdim=True)
        chance = rest / rest.sum(-1, keepdim=True).clamp(min=_TINY) * left
        certain = certain | (chance >= 1)
    reached = torch.where(certain, 1.0, chance).cumsum(-1)
    step = (torch.arange(num_clusters, device=weights.device) + offset) / num_clusters
    found = torch.searchsorted(reached, step * reached[:, -1:], right=True)
    return found.clamp(max=weights.shape[1] - 1)
