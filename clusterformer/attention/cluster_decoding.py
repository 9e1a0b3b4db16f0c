"""Cached decoding of strictly causal neural clustering attention.

B batch   H heads   G clusterings   Z rows: B * G   M tokens kept   D head width
F features (width of the clustering space)

The cache is a `ClusterCache`. Up to `dense_length` tokens, it holds keys and values of all of them,
and their points. With the token after them, the rings of the last chunks of each cluster take their
place.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.attention.base import Cache, Grouping
from clusterformer.attention.head_parts import fold_heads, unfold_heads
from clusterformer.attention.local_heads import LocalHeads
from clusterformer.attention.ring_steps import ClusterCache, fill_ring, ring_step
from clusterformer.attention.text_cache import extend
from clusterformer.clustering.ring_cache import make_ring_cache
from clusterformer.kernels.reference import argmax_first
from clusterformer.kernels.rows import append_columns


class ClusterDecoding(LocalHeads):
    """Decoding of `NeuralClusteringAttention`, which has the options and methods declared here.

    Each clustering of a text, with its share of the heads, is a row of its own.
    """

    num_clusters: int
    num_clusterings: int
    chunk_size: int
    look_back: int
    dense_length: int
    coupling: bool
    similarity: Literal["cosine", "dot"]
    space: nn.Linear

    @abstractmethod
    def anchors(self, hidden: Tensor, previous: Grouping | None) -> tuple[Tensor, Tensor]:
        """Compute points (Z, N, F) and anchors (C, F) or (Z, C, F)."""

    @abstractmethod
    def coupling_columns(self, points: Tensor) -> tuple[Tensor, Tensor] | None:
        """Compute the columns of queries and keys, (Z, N, F), that couple; None for none."""

    def cache(self, like: Tensor) -> Cache:
        """Make a cache of the first `dense_length` tokens, then of the last chunks of each cluster.

        Cost: O(1) time and memory per step, for any length.
        """
        if self.causal is not True:
            return super().cache(like)
        batch, rows = len(like), self.num_clusterings
        cosine, space = self.similarity == "cosine", self.space
        features = space.out_features // rows if cosine else space.in_features  # of points
        coupled = self.head_width + (features if self.coupling else 0)
        row = like.new_zeros((self.num_heads - self.local_heads) // rows * coupled)
        size = (self.look_back + 1) * self.chunk_size
        far = make_ring_cache(batch * rows, self.num_clusters, size, (row, row))
        length = like.new_zeros(batch, dtype=torch.long)
        points = like.new_zeros(batch, rows, 0, features, dtype=torch.float32)
        heads = like.new_zeros(batch, self.num_heads, 0, self.head_width)
        return ClusterCache(length, (points, heads, heads), far, self.near_ring(like)).flat(rows)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Decode one token. Writes into `cache`, or a larger copy of it, and returns it."""
        points, anchors = self._own_points(hidden)
        held = ClusterCache.read(cache)
        position, clusterings = int(held.length[0]), self.num_clusterings
        if position < self.dense_length:
            new = zip(held.first, (self._by_text(points), k, v), strict=True)
            first = tuple(extend(rows, position, row) for rows, row in new)
            key, value = (rows[:, :, : position + 1].to(q.dtype) for rows in first[1:])
            mixed = F.scaled_dot_product_attention(q, key, value)
            return mixed, held._replace(length=held.length + 1, first=first).flat(clusterings)
        if position == self.dense_length and position:
            kept, key, value = (rows[:, :, :position] for rows in held.first)
            kept = kept.flatten(0, 1)
            held = self._fill_rings(key, value, kept, _nearest(kept, anchors), held)
        length, first, far, near = held
        local, (parts, near) = self.local_heads, self.step_near(q, k, v, near)
        if local < self.num_heads:
            query, key, value = (fold_heads(x[:, local:], clusterings) for x in (q, k, v))
            extra = self.coupling_columns(points)
            if extra is not None:
                query, key = (
                    append_columns(x, y) for x, y in zip((query, key), extra, strict=True)
                )
            cluster, scale = _nearest(points, anchors)[:, 0], self.head_width**-0.5
            part, far = ring_step(query, key, value, cluster, self.chunk_size, far, scale)
            parts.append(unfold_heads(part, clusterings))
        return torch.cat(parts, 1), ClusterCache(length + 1, first, far, near).flat(clusterings)

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        mixed, grouping = self.forward(q, k, v, hidden=hidden)
        held = ClusterCache.read(cache)
        if grouping is None:  # no more than the first tokens
            first = self._by_text(self._own_points(hidden)[0]), k.contiguous(), v.contiguous()
            held = held._replace(length=held.length + k.shape[2], first=first)
        else:
            assert grouping.points is not None
            clusters = grouping.assignment.reshape(len(grouping.points), -1)
            held = self._fill_rings(k, v, grouping.points, clusters, held)
        return mixed, held.flat(self.num_clusterings)

    def _fill_rings(
        self, k: Tensor, v: Tensor, points: Tensor, clusters: Tensor, held: ClusterCache
    ) -> ClusterCache:
        """Put the first tokens of a text into empty rings, and none of them beside the rings.

        Args:
            k, v: (B, H, M, D).
            points: (Z, M, F).
            clusters: Cluster of each token, (Z, M).
            held: Cache with empty rings.
        """
        local, clusterings, far = self.local_heads, self.num_clusterings, held.far
        if local < self.num_heads:
            key, extra = fold_heads(k[:, local:], clusterings), self.coupling_columns(points)
            if extra is not None:
                key = append_columns(key, extra[1])
            far = fill_ring(key, fold_heads(v[:, local:], clusterings), clusters, far)
        none = self._by_text(points)[:, :, :0], k[:, :, :0], v[:, :, :0]
        length = torch.full_like(held.length, k.shape[2])
        return ClusterCache(length, none, far, self.fill_near(k, v, held.near))

    def _own_points(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Compute points and anchors of this layer's own centroids, as `forward` does."""
        with torch.autocast(hidden.device.type, enabled=False):
            return self.anchors(hidden.float(), None)

    def _by_text(self, rows: Tensor) -> Tensor:
        """Turn rows (Z, ...) to (B, G, ...)."""
        return rows.unflatten(0, (-1, self.num_clusterings))


def _nearest(points: Tensor, anchors: Tensor) -> Tensor:
    """Find the clusters (Z, M) of points (Z, M, F)."""
    with torch.autocast(points.device.type, enabled=False):  # as `forward` assigns
        return argmax_first(anchors @ points.transpose(1, 2), 1)
