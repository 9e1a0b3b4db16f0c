"""Which points belong together: the nearest neighbours of each, in a space that suits any data.

N points   D columns of the data   F features   K neighbours
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.errors import InputError

EXACT = 10_000
"""Points that a processor compares each with each; time grows with the square of them."""

_CELLS = 8
"""Of the inverted lists, as many are looked through for a point: 0.985 of MNIST's are found."""


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


def partners(features: Tensor, count: int) -> Tensor:
    """Find the nearest other points of each point.

    Nearest by the angle between (x, 1) and (y, 1), x and y features: among points far from the mean
    it compares directions, as the cosine does, among points near it distances. On MNIST neighbours
    have the same digit as often as by the cosine alone (0.969), and in one dimension, where the
    cosine knows two directions, it still works.

    Exactly on a GPU and for up to EXACT points; else with FAISS, among the points of the sqrt(N)
    cells of a k-means that are nearest: O(N^1.5).

    Args:
        features: (N, F) in the unit of `Features`.
        count: K.

    Returns:
        Indices (N, min(K, N - 1)); the point itself if it is alone.

    Raises:
        InputError: if FAISS is needed and not installed.
    """
    count = min(count, len(features) - 1)
    if count == 0:
        return torch.zeros(len(features), 1, dtype=torch.long, device=features.device)
    lifted = F.normalize(F.pad(features, (0, 1), value=1.0), dim=1)
    if lifted.is_cuda or len(lifted) <= EXACT:
        return _compared(lifted, count)
    return _listed(lifted, count)


def _compared(lifted: Tensor, count: int, rows: int = 1024) -> Tensor:
    """Compare some rows with all points at a time."""
    found = []
    for start in range(0, len(lifted), rows):
        cosines = lifted[start : start + rows] @ lifted.T
        cosines.diagonal(start).fill_(-torch.inf)
        found.append(cosines.topk(count, 1).indices)
    return torch.cat(found)


def _listed(lifted: Tensor, count: int) -> Tensor:
    try:
        import faiss
    except ImportError:
        raise InputError(
            f"more than {EXACT} points need faiss for their neighbours: "
            "pip install 'clusterformer[cluster]'"
        ) from None
    points = lifted.float().numpy()
    width = points.shape[1]
    lists = faiss.IndexIVFFlat(
        faiss.IndexFlatIP(width), width, math.isqrt(len(points)), faiss.METRIC_INNER_PRODUCT
    )
    lists.train(points)
    lists.add(points)
    lists.nprobe = _CELLS
    found = torch.from_numpy(lists.search(points, count + 1)[1])
    itself = found == torch.arange(len(found))[:, None]
    itself[~itself.any(1), -1] = True  # of many equal points it may have found others
    found = found[~itself].view(-1, count)
    # cells with too few points leave gaps, -1
    return torch.where(found < 0, torch.arange(len(found))[:, None], found)
