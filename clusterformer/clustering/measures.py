"""Measures of clusters, by labels that clustering never saw or by the points.

P points   F features   C clusters   L labels
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SAMPLE = 2000
"""Maximum number of points for the silhouette, which compares all pairs."""


def measures(
    train: NDArray,
    train_labels: NDArray | None,
    test: NDArray,
    test_labels: NDArray | None,
    points: NDArray,
) -> dict[str, float]:
    """Measure a clustering on the test points.

    accuracy: each cluster named by its majority among training points; those without any are wrong.
    purity: each cluster named by its majority among the test points themselves.
    nmi, ari: normalised mutual information; adjusted Rand index.
    hungarian: accuracy with at most one cluster per label.
    silhouette: with Euclidean distances, on SAMPLE points; -1..1.

    Args:
        train: Cluster of each training point, (train points,).
        train_labels: Label of each training point; None leaves only the silhouette.
        test: Cluster of each test point, (P,).
        test_labels: Label of each test point, (P,).
        points: Test points, (P, F).
    """
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics import (
        adjusted_rand_score,
        normalized_mutual_info_score,
        silhouette_score,
    )

    found: dict[str, float] = {}
    if train_labels is not None and test_labels is not None:
        names = np.unique(np.concatenate([train_labels, test_labels]))
        clusters = 1 + max(int(train.max()), int(test.max()))
        seen = _table(train, train_labels, clusters, names)
        now = _table(test, test_labels, clusters, names)
        filled = seen.any(1)
        rows, columns = linear_sum_assignment(now, maximize=True)
        right = now[np.arange(clusters), seen.argmax(1)][filled].sum()
        found = {
            "accuracy": right / len(test),
            "purity": now.max(1).sum() / len(test),
            "nmi": normalized_mutual_info_score(test_labels, test),
            "ari": adjusted_rand_score(test_labels, test),
            "hungarian": now[rows, columns].sum() / len(test),
        }
    shown = np.random.default_rng(0).permutation(len(test))[:SAMPLE]
    if 1 < len(np.unique(test[shown])) < len(shown):
        found["silhouette"] = silhouette_score(points[shown], test[shown])
    return {name: float(value) for name, value in found.items()}


def _table(clusters: NDArray, labels: NDArray, count: int, names: NDArray) -> NDArray[np.int64]:
    """Count the points of each cluster with each label, (C, L)."""
    table = np.zeros((count, len(names)), dtype=np.int64)
    np.add.at(table, (clusters, np.searchsorted(names, labels)), 1)
    return table
