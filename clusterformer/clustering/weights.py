"""Weights of points, and equal points, which count as one.

P points
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clusterformer.clustering.evaluation import row_chunks

_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, of Knuth's multiplicative hashing
_SHIFT = np.uint64(29)
_USUAL = 2.0**32  # largest weight that is taken as it is; sums over points stay finite
_LEAST = 2.0**-80  # of the largest weight; products with memberships stay above 0


def check_weights(sample_weight: Any, num_points: int) -> NDArray[np.float64] | None:
    """Check weights of points, (P,); None if all are 1.

    In a fit only ratios of weights count, between calls of `partial_fit` also their sums. Those
    that single precision cannot hold are scaled such that the largest is below 1, and 1e-24 of the
    largest is the least weight above 0.

    Raises:
        ValueError: if their number is wrong, or one is negative, NaN or infinite, or all are 0.
    """
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight)
    if weights.ndim == 0:
        weights = np.full(num_points, weights[()])
    if weights.ndim != 1:
        raise ValueError("Sample weights must be 1D array or scalar")
    if weights.dtype.kind not in "buif":
        raise ValueError(f"sample_weight must be numbers, got {weights.dtype}")
    if len(weights) != num_points:
        raise ValueError(
            f"sample_weight.shape == {weights.shape}, expected {(num_points,)}: one for each point"
        )
    weights = weights.astype(np.float64)
    if not np.isfinite(weights).all():
        raise ValueError("Input sample_weight contains NaN or infinity")
    if weights.min() < 0:
        raise ValueError(
            f"Negative values in sample_weight: {weights.min():g}; allowed is 0 or more"
        )
    if not weights.any():
        raise ValueError("Sample weights must contain at least one non-zero number.")
    if (weights == 1).all():
        return None
    largest = weights.max()
    if not 1 / _USUAL <= largest <= _USUAL:
        weights = np.ldexp(weights, -np.frexp(largest)[1])  # exact: a power of two
    return np.where(weights > 0, np.maximum(weights, _LEAST * weights.max()), 0.0)


def join_equal_points(
    X: Any, rows: NDArray, weights: NDArray | None, num_clusters: int
) -> tuple[NDArray, NDArray | None]:
    """Let the first of equal points stand for all of them, with the sum of their weights.

    An equal point would be the nearest neighbour, which says nothing about clusters. So a weight of
    3 is the same as three copies, and a weight of 0 the same as no point.

    Args:
        X: Points, (P, columns).
        rows: Indices of the points to look at.
        weights: Weight of each point, (P,); None for 1.
        num_clusters: Number of clusters, for the size of chunks.

    Returns:
        Rows, and their weights with a mean of 1. If all weigh the same, these are the rows in the
        given order, and None; else the order of the rows depends on nothing but their values.
    """
    if weights is not None:
        rows = rows[weights[rows] > 0]
    chunks = row_chunks(X, num_clusters, "cpu", rows)
    hashed = np.concatenate([_hash(chunk) for chunk in chunks])
    _, first, group = np.unique(hashed, return_index=True, return_inverse=True)
    sums = np.bincount(group, None if weights is None else weights[rows])
    if (sums == sums[0]).all():
        return rows[np.sort(first)], None
    return rows[first], sums / sums.mean()


def _hash(points: torch.Tensor) -> NDArray[np.uint64]:
    """Compute a hash of 64 bits of the values of each point."""
    # + 0.0: minus zero equals zero
    bits = (points.double() + 0.0).numpy().view(np.uint64)
    mixed = bits * _FACTOR
    mixed ^= mixed >> _SHIFT
    factors = np.random.default_rng(0).integers(2**63, size=bits.shape[1], dtype=np.uint64)
    return (mixed * (2 * factors + np.uint64(1))).sum(1, dtype=np.uint64)
