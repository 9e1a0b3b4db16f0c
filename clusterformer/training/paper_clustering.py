"""Clustering of points by the paper's equations alone: table 6, "proposed method".

P points   F features   C clusters
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clusterformer import losses
from clusterformer.attention import PAPER_FORM, NeuralClusteringAttention

_STEPS, _BATCH, _CHUNK = 600, 2048, 16_384  # steps and points
_LR = 5e-3
_SORTING_WEIGHT = 0.1


class PaperClustering:
    """Clusters that minimise L1 + L2 of the paper (section 3.1 and 3.2, appendix A).

    The grouping is that of `NeuralClusteringAttention` in the paper's form: a batch of points is a
    sequence, similarities are C (X W)^T, their softmax is over the points (eq. 2), centroids are
    updated (eq. 3), and a point belongs to the cluster of which it has the largest share (eq. 4).
    Random C and W are trained by Adam on both losses (eq. 6 and 11). What the paper does not say:
    the weights of the losses are 1 and 0.1; points are centred, and scaled to a standard deviation
    of 1 over all features; new points are measured by the normalisers of all training points.

    Args:
        num_clusters: C.
        seed: Seed of C, W and the batches.
        form: Form of the losses: "bare", the letter, which has no lower bound; or "bounded", by the
            cosine.

    Attributes:
        cluster_centers_: Means of the training points by their share (eq. 3 in the space of the
            data), (C, F).
        labels_: Cluster of each training point, (P,).
    """

    def __init__(
        self, num_clusters: int, seed: int, *, form: Literal["bare", "bounded"] = "bare"
    ) -> None:
        self._num_clusters, self._seed, self._form = num_clusters, seed, form

    def fit(self, points: NDArray) -> PaperClustering:
        """Train on points (P, F)."""
        step = -(-len(points) // _CHUNK)  # rows of a file may be in the order of their kinds
        sample = np.asarray(points[::step], dtype=np.float32)
        self._center, self._scale = sample.mean(0), max(float(sample.std()), 1e-12)
        with torch.random.fork_rng():
            torch.manual_seed(self._seed)
            self._core = NeuralClusteringAttention(
                points.shape[1], 1, num_clusters=self._num_clusters, **PAPER_FORM
            )
            optimizer = torch.optim.Adam(self._core.parameters(), lr=_LR)
            for _ in range(_STEPS):
                rows = torch.randint(len(points), (min(_BATCH, len(points)),)).numpy()
                batch = self._scaled(points[rows])[None]
                grouping = self._core.grouping_of(batch, None, None)
                mask = torch.ones(batch.shape[:2], dtype=torch.bool)
                clustering = losses.clustering_loss(grouping, mask, self._form) / len(rows)
                sorting = losses.sorting_loss(grouping, self._form).mean()
                loss = clustering.mean() + _SORTING_WEIGHT * sorting
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        chunks = [points[start : start + _CHUNK] for start in range(0, len(points), _CHUNK)]
        with torch.inference_mode():
            parts = [self._similarities(chunk).logsumexp(0) for chunk in chunks]
            self._normaliser = torch.stack(parts).logsumexp(0)  # (C,)
            centers = torch.zeros(self._num_clusters, points.shape[1])
            for chunk in chunks:
                share = (self._similarities(chunk) - self._normaliser).exp()
                centers += share.T @ torch.from_numpy(np.asarray(chunk, dtype=np.float32))
        self.cluster_centers_ = centers.numpy()
        self.labels_ = self.predict(points)
        return self

    def predict(self, points: NDArray) -> NDArray[np.int64]:
        """Find the cluster of each point (P, F), (P,)."""
        with torch.inference_mode():
            found = [
                (self._similarities(points[start : start + _CHUNK]) - self._normaliser).argmax(1)
                for start in range(0, len(points), _CHUNK)
            ]
        return torch.cat(found).numpy()

    def _scaled(self, points: NDArray) -> Tensor:
        return torch.from_numpy((np.asarray(points, np.float32) - self._center) / self._scale)

    def _similarities(self, points: NDArray) -> Tensor:
        """S of eq. 2, (P, C)."""
        found, anchors = self._core.anchors(self._scaled(points), None)
        return found @ anchors.T
