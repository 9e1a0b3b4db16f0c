"""Starting points of k-means.

B batch   N points   C clusters
"""

import torch
from torch import Tensor

from clusterformer.kernels.ordering import count_up_to

ROUNDS = 4
"""Number of times that chances are raised again after some points became certain."""

ROUNDING = 1e-4
"""Share of a step that counts as a rounding error. Between points of equal weight a sample may fall
on a border, and sums are rounded in other ways by other devices and by onnxruntime."""

_TINY = torch.finfo(torch.float32).tiny


def seeds(weights: Tensor, num_clusters: int, offset: Tensor | float) -> Tensor:
    """Draw starting points with chances in proportion to their weights.

    Systematic sampling takes equal steps along the cumulative chances, so the starts spread over
    the sequence and one number holds all the randomness. No chance exceeds 1; where there are no
    more points than clusters, every point starts a cluster.

    Args:
        weights: (B, N) float32, at least 0; 0 at padding.
        num_clusters: C.
        offset: Position of each sample within its step, 0..1: a number or (C,).

    Returns:
        (B, C) integer indices of points, each with a weight if any point has one.
    """
    real = weights > 0
    certain = real & (real.sum(-1, keepdim=True) <= num_clusters)
    for _ in range(ROUNDS):
        rest = weights.masked_fill(certain, 0.0)
        left = num_clusters - certain.sum(-1, keepdim=True)
        chance = rest / rest.sum(-1, keepdim=True).clamp(min=_TINY) * left
        certain = certain | (chance >= 1)
    reached = torch.where(certain, 1.0, chance).cumsum(-1)
    order = torch.arange(num_clusters, dtype=torch.float32, device=weights.device)
    position = order + offset + ROUNDING
    step = position / num_clusters
    found = count_up_to(reached, step * reached[:, -1:])
    return found.clamp(max=weights.shape[1] - 1)
