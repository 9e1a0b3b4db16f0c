"""UMAP and HDBSCAN, as BERTopic joins them: the usual way to cluster embeddings of texts.

P points   F features   C clusters
"""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from clusterformer.errors import missing

_SMALLEST = 10  # points of a cluster, BERTopic's default
_SIZES = 40


class UmapHdbscan:
    """HDBSCAN in 5 dimensions of UMAP, with BERTopic's settings.

    HDBSCAN has no number of clusters. For C clusters the minimum size of a cluster is searched
    from 10 points to half of a mean cluster, up to 40 sizes; the one whose number of clusters is
    nearest to C is taken. Points that HDBSCAN calls noise join the cluster with the nearest mean,
    which makes its measures better. Other points join the cluster of the nearest training point.

    Args:
        num_clusters: C; "auto" takes what the minimum size 10 finds.
        seed: Seed of UMAP.

    Attributes:
        cluster_centers_: Means of the clusters, (C, F).
        labels_: Cluster of each point, (P,).

    Raises:
        InputError: if umap-learn is missing.
    """

    def __init__(self, num_clusters: int | Literal["auto"], seed: int) -> None:
        try:
            from umap import UMAP
        except ImportError:
            raise missing("umap-hdbscan needs umap-learn", "umap") from None
        self._num_clusters = num_clusters
        self._umap = UMAP(
            n_neighbors=15,
            n_components=5,
            min_dist=0.0,
            metric="cosine",
            random_state=seed,
            n_jobs=1,
        )

    def fit(self, points: NDArray) -> UmapHdbscan:
        """Learn the map and the clusters of points (P, F)."""
        from sklearn.metrics import pairwise_distances_argmin
        from sklearn.neighbors import KNeighborsClassifier

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few points, which UMAP changes its settings for
            plane = self._umap.fit_transform(points)
        labels = self._search(plane)
        nearest = pairwise_distances_argmin(plane, _means(plane, labels))
        self.labels_ = np.where(labels < 0, nearest, labels)
        self._neighbors = KNeighborsClassifier(1).fit(plane, self.labels_)
        self.cluster_centers_ = _means(points, self.labels_)
        return self

    def predict(self, points: NDArray) -> NDArray[np.int64]:
        """Map points (P, F), and take the cluster of the nearest training point there, (P,)."""
        return self._neighbors.predict(self._umap.transform(points))

    def _search(self, plane: NDArray) -> NDArray[np.int64]:
        """Find as nearly C clusters as possible; a single cluster if there are none."""
        smallest = min(_SMALLEST, max(2, len(plane) // 2))
        count, largest = self._num_clusters, smallest
        if count != "auto":
            largest = max(smallest, len(plane) // (2 * count))
        sizes = sorted({int(size) for size in np.geomspace(smallest, largest, _SIZES)})
        tried = [_hdbscan(plane, size) for size in sizes]  # the number does not fall steadily
        if count != "auto":
            tried.sort(key=lambda labels: abs(_number(labels) - count))
        found = [labels for labels in tried if _number(labels)]
        return found[0] if found else np.zeros(len(plane), dtype=np.int64)


def _hdbscan(plane: NDArray, smallest: int) -> NDArray[np.int64]:
    """Find clusters of at least so many points, (P,); noise is -1."""
    from sklearn.cluster import HDBSCAN

    found: NDArray[np.int64] = HDBSCAN(min_cluster_size=smallest, copy=True).fit_predict(plane)
    return found


def _number(labels: NDArray[np.int64]) -> int:
    return int(labels.max()) + 1


def _means(points: NDArray, labels: NDArray) -> NDArray:
    return np.stack([points[labels == cluster].mean(0) for cluster in range(labels.max() + 1)])
