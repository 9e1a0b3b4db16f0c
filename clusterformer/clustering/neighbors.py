"""Nearest neighbours of points, in a space that suits any data.

P points   F features (principal components)
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.errors import missing

EXACT = 10_000
"""Maximum number of points that a CPU compares each with each, in quadratic time."""

_CELLS = 8
"""Number of inverted lists searched for a point: 0.985 of MNIST's neighbours are found."""


class PrincipalComponents(nn.Module):
    """A linear map from data to principal components, in one common unit of length.

    The unit is the root mean square distance from the mean, so neither scale nor offset of the data
    matters.

    Args:
        num_columns: Number of columns of the data.
        num_features: F; at most the number of columns.

    Attributes:
        center: (num_columns,), the mean.
        projection: (num_columns, F), components divided by the unit.
    """

    center: Tensor
    projection: Tensor

    def __init__(self, num_columns: int, num_features: int) -> None:
        super().__init__()
        self.num_features = min(num_features, num_columns)
        self.register_buffer("center", torch.zeros(num_columns))
        self.register_buffer("projection", torch.zeros(num_columns, self.num_features))

    @torch.no_grad()
    def learn(self, sample: Tensor, weights: Tensor | None = None) -> PrincipalComponents:
        """Compute mean, unit and components, the largest first, of a sample (P, num_columns).

        Args:
            sample: (P, num_columns).
            weights: Weight of each point, (P,), with a mean of 1; None for 1.
        """
        # a power of two, whose division is exact, keeps squares within the range of the dtype
        scale = 2.0 ** float(torch.frexp(sample.abs().max()).exponent)
        sample = sample / scale
        each = sample if weights is None else sample * weights[:, None]
        mean = each.mean(0)
        centered = sample - mean
        if weights is not None:
            centered = centered * weights.sqrt()[:, None]
        unit = centered.square().sum(1).mean().sqrt() * scale
        if len(sample) > sample.shape[1]:
            components = torch.linalg.eigh(centered.T @ centered).eigenvectors.flip(1)
        else:
            components = torch.linalg.svd(centered, full_matrices=False).Vh.T
        components = components[:, : self.num_features]
        self.to(sample)
        self.center.copy_(mean * scale)
        self.projection.zero_()
        if unit > torch.finfo(unit.dtype).tiny:
            self.projection[:, : components.shape[1]] = components / unit
        return self

    def forward(self, points: Tensor) -> Tensor:
        """Map points (P, num_columns) to features (P, F)."""
        return (points - self.center) @ self.projection


def nearest_neighbors(features: Tensor, count: int) -> Tensor:
    """Find the nearest other points of each point.

    The distance is the angle between (x, 1) and (y, 1), x and y features. Far from the mean it
    compares directions, as the cosine does; near the mean it compares distances. On MNIST
    neighbours have the same digit as often as by the cosine (0.969), and it also works in one
    dimension, where the cosine has only two directions.

    The search is exact on a GPU and for up to EXACT points. Else FAISS searches the nearest cells
    of a k-means with sqrt(P) cells: O(P^1.5).

    Args:
        features: (P, F) in the unit of `PrincipalComponents`.
        count: Number of neighbours.

    Returns:
        Indices (P, min(count, P - 1)); the point itself if there is no other.

    Raises:
        InputError: if FAISS is needed and not installed.
    """
    count = min(count, len(features) - 1)
    if count == 0:
        return torch.zeros(len(features), 1, dtype=torch.long, device=features.device)
    lifted = F.normalize(F.pad(features, (0, 1), value=1.0), dim=1)
    if lifted.is_cuda or len(lifted) <= EXACT:
        return _search_exactly(lifted, count)
    return _search_lists(lifted, count)


def mutual_pairs(near: Tensor) -> Tensor:
    """Find the pairs of points that are neighbours of each other.

    Where kinds of points are separated, more of these pairs are of one kind than of all pairs, and
    a point that is near to many others is in no more pairs than its own neighbours allow.

    Args:
        near: Neighbours of each point, (P, K).

    Returns:
        Indices (pairs, 2), each pair in both orders; all pairs if none is mutual.
    """
    points = torch.arange(len(near), device=near.device).repeat_interleave(near.shape[1])
    pairs = torch.stack([points, near.flatten()], 1)
    mutual = torch.isin(points * len(near) + pairs[:, 1], pairs[:, 1] * len(near) + points)
    return pairs[mutual] if mutual.any() else pairs


def _search_exactly(lifted: Tensor, count: int) -> Tensor:
    """Compare blocks of rows with all points."""
    found, rows = [], 1024
    for start in range(0, len(lifted), rows):
        cosines = lifted[start : start + rows] @ lifted.T
        cosines.diagonal(start).fill_(-torch.inf)
        found.append(cosines.topk(count, 1).indices)
    return torch.cat(found)


def _search_lists(lifted: Tensor, count: int) -> Tensor:
    try:
        import faiss
    except ImportError:
        need = f"more than {EXACT} points need faiss for their neighbours"
        raise missing(need, "cluster") from None
    points = lifted.float().numpy()
    width = points.shape[1]
    lists = faiss.IndexIVFFlat(
        faiss.IndexFlatIP(width), width, math.isqrt(len(points)), faiss.METRIC_INNER_PRODUCT
    )
    lists.train(points)
    lists.add(points)
    lists.nprobe = _CELLS
    found = torch.from_numpy(lists.search(points, count + 1)[1])
    is_self = found == torch.arange(len(found))[:, None]
    is_self[~is_self.any(1), -1] = True  # among many equal points, only others may be found
    found = found[~is_self].view(-1, count)
    # cells with too few points leave gaps, -1
    return torch.where(found < 0, torch.arange(len(found))[:, None], found)
