"""Trained clusters on arrays of any size, a chunk of rows at a time.

P points   F features (principal components)   C clusters
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clusterformer.clustering.neighbors import PrincipalComponents
from clusterformer.clustering.network import NeuralClusters, neighbor_loss

ENTRIES = 2**24
"""Maximum number of elements of a chunk."""

FARTHEST = 1e15
"""Maximum magnitude of a feature, in mean distances from the mean; squares stay finite."""

NOISE = -1
"""Label of points whose largest membership is below `min_probability`."""

_ROWS = 2**15  # points whose memberships are computed at a time
_BLOCK = 4096  # points whose cluster is predicted at a time
_HEADROOM = 2.0**27  # by which sums over points may exceed a value


class Totals(NamedTuple):
    """Sums over points, from which centers and the hierarchy of clusters follow.

    Attributes:
        mass: Sums of memberships, (C,).
        sums: Sums of points, weighted by membership, (C, columns).
        joint: Numbers of pairs of neighbours in two clusters, (C, C), symmetric.
    """

    mass: NDArray
    sums: NDArray
    joint: NDArray

    def add(self, old: Totals, weight: float) -> Totals:
        """Add earlier sums, times a weight."""
        return Totals(*(new + weight * before for new, before in zip(self, old, strict=True)))


def row_chunks(
    X: Any, num_clusters: int, device: str, rows: NDArray | None = None
) -> Iterator[Tensor]:
    """Yield rows of X (P, columns), or some of them, as tensors on the device.

    A chunk is small enough for the memory of the data and of memberships.

    Raises:
        ValueError: if values are so large that their sums would not be finite.
    """
    count = X.shape[0] if rows is None else len(rows)
    size = max(1, ENTRIES // max(X.shape[1], num_clusters))
    for start in range(0, count, size):
        part = slice(start, start + size)
        chunk = X[part] if rows is None else X[rows[part]]
        chunk = chunk if isinstance(chunk, np.ndarray) else chunk.toarray()
        chunk = chunk.astype(np.float32) if chunk.dtype == np.float16 else chunk
        # a copy only of what torch cannot read as it is, such as a read-only map
        points = torch.as_tensor(np.require(chunk, requirements=["C", "W"]), device=device)
        largest, limit = _largest(points), torch.finfo(points.dtype).max / _HEADROOM
        if not largest <= limit:
            raise ValueError(
                f"values up to {float(largest):.1e} are too large for {chunk.dtype}; allowed is up "
                f"to {limit:.1e}: divide the data"
            )
        yield points


def compute_features(
    features: PrincipalComponents,
    X: Any,
    num_clusters: int,
    device: str,
    rows: NDArray,
    augment: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Compute features of some rows of X, in single precision, as training uses them."""
    features = features.to(device)
    chunks = row_chunks(X, num_clusters, device, rows)
    return torch.cat([_map_points(features, augment(x) if augment else x).float() for x in chunks])


def _map_points(features: PrincipalComponents, points: Tensor) -> Tensor:
    """Map points to features.

    Raises:
        ValueError: if a point is farther from the others than FARTHEST.
    """
    found = features(points.to(features.center.dtype))
    if not _largest(found) <= FARTHEST:
        far = int((found.abs().amax(1) <= FARTHEST).logical_not().nonzero()[0])
        raise ValueError(
            f"a point with values up to {float(points[far].abs().max()):.1e} is more than "
            f"{FARTHEST:.0e} times as far from the mean of the data as other points; remove it, or "
            "scale its columns"
        )
    return found


def _largest(values: Tensor) -> Tensor:
    """Find the largest magnitude, NaN if there is one, without a copy of the values."""
    low, high = torch.aminmax(values)
    return torch.maximum(-low, high)


@torch.no_grad()
def pair_loss(
    network: NeuralClusters, features: Tensor, near: Tensor, weights: Tensor | None = None
) -> float:
    """Compute `neighbor_loss` of all points (P, F), each with its nearest neighbour."""
    logits = torch.cat([network(rows) for rows in features.split(_ROWS)])
    return neighbor_loss(logits, logits[near[:, 0]], weights=weights).item()


@torch.no_grad()
def count_pairs(
    network: NeuralClusters, features: Tensor, near: Tensor, weights: Tensor | None
) -> NDArray[np.float64]:
    """Count pairs of neighbours in each two clusters, (C, C), symmetric.

    Args:
        network: Trained clusters.
        features: (P, F).
        near: (P, K), indices of the neighbours of each point.
        weights: Weight of each point, (P,); None for 1.
    """
    count = network.num_clusters
    assigned = torch.cat([network(rows).argmax(1) for rows in features.split(_ROWS)])
    cells = (assigned[:, None] * count + assigned[near]).flatten()
    each = None if weights is None else weights.double().repeat_interleave(near.shape[1])
    joint = torch.bincount(cells, each, minlength=count**2).view(count, count).double()
    return (joint + joint.T).cpu().numpy() / 2


def label(logits: Tensor, min_probability: float) -> Tensor:
    """Find the cluster of each point by its logits (P, C); NOISE where none is probable enough."""
    labels = logits.argmax(1)
    if not min_probability:
        return labels
    return labels.where(logits.softmax(1).amax(1) >= min_probability, NOISE)


class Evaluator:
    """Trained parts, copied to the device and to the precision of the data.

    Args:
        network: Trained clusters.
        features: The map from data to features.
        X: Points (P, columns).
        device: "cpu" or "cuda".
    """

    def __init__(
        self, network: NeuralClusters, features: PrincipalComponents, X: Any, device: str
    ) -> None:
        dtype = torch.float64 if X.dtype == np.float64 else torch.float32
        network, features = copy.deepcopy((network, features))
        self._network, self._features = network.to(device, dtype), features.to(device, dtype)
        self._X, self._device = X, device

    def per_point(self, function: Callable[[NeuralClusters, Tensor], Tensor]) -> NDArray:
        """Apply a function of the network and features (chunk, F) to all points."""
        with torch.no_grad():
            found = [function(self._network, self._map(x)).cpu() for x in self._chunks()]
        return torch.cat(found).numpy()

    def nearest(self) -> NDArray[np.int64]:
        """Find the cluster of each point, (P,), in blocks of rows that fit into the cache."""
        labels = np.empty(self._X.shape[0], dtype=np.int64)
        start = 0
        with torch.no_grad():
            for chunk in self._chunks():
                self._write_nearest(chunk, labels[start : start + len(chunk)])
                start += len(chunk)
        return labels

    def _write_nearest(self, chunk: Tensor, labels: NDArray[np.int64]) -> None:
        for start, block in zip(range(0, len(chunk), _BLOCK), chunk.split(_BLOCK), strict=True):
            scores = self._network.scores(self._map(block)).cpu()
            # three times as fast as torch's argmax over short rows
            scores.numpy().argmax(1, out=labels[start : start + len(block)])

    def assign(
        self, weights: NDArray | None, min_probability: float
    ) -> tuple[NDArray, NDArray, NDArray]:
        """Label each point, (P,), and sum memberships (C,) and weighted points (C, columns).

        Labels are those of `predict`, to the last bit.
        """
        labels = np.empty(self._X.shape[0], dtype=np.int64)
        mass: Any = 0.0
        sums: Any = 0.0
        start = 0
        with torch.no_grad():
            for chunk in self._chunks():
                logits = self._network(self._map(chunk))
                rows = slice(start, start + len(chunk))
                if min_probability:
                    labels[rows] = label(logits, min_probability).cpu()
                else:
                    self._write_nearest(chunk, labels[rows])
                p = logits.softmax(1)
                if weights is not None:
                    p = p * torch.as_tensor(weights[rows, None]).to(p)
                start += len(chunk)
                mass = mass + p.sum(0).double()
                sums = sums + (p.T @ chunk).double()
        return labels, mass.cpu().numpy(), sums.cpu().numpy()

    def _map(self, points: Tensor) -> Tensor:
        return _map_points(self._features, points)

    def _chunks(self) -> Iterator[Tensor]:
        return row_chunks(self._X, self._network.num_clusters, self._device)
