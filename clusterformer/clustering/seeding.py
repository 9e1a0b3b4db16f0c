"""Where a clustering starts.

B batch   N points   C clusters
"""

import torch
from torch import Tensor


def seeds(weights: Tensor, num_clusters: int, offset: Tensor | float) -> Tensor:
    """Points to start from, drawn with chances in proportion to their weights.

    Systematic sampling: equal steps along the cumulative chances, so the starts spread over the
    sequence and one number holds all the randomness. No point's chance exceeds 1; where there are
    no more points than clusters, every point starts a cluster.

    Args:
        weights: (B, N), at least 0; 0 at padding.
        num_clusters: C.
        offset: Where in its step each sample stands, 0..1: a number or (C,).

    Returns:
        (B, C) integer. Every one is of a point with a weight, if there is any.
    """
    few = (weights > 0).sum(-1, keepdim=True) <= num_clusters
    share = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    chance = torch.where(few, (weights > 0).to(weights.dtype), share.mul(num_clusters).clamp(max=1))
    reached = chance.cumsum(-1)
    step = (torch.arange(num_clusters, device=weights.device) + offset) / num_clusters
    found = torch.searchsorted(reached, step * reached[:, -1:], right=True)
    return found.clamp(max=weights.shape[1] - 1)
