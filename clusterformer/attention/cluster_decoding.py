"""Cached decoding of strictly causal neural clustering attention.

B batch   H heads   G clusterings   R rows: B * G   M tokens kept   D head width
F features (width of the clustering space)

The cache has two parts. Up to `dense_length` tokens, keys and values of all of them, and their
points. With the token after them, rings of the last chunks of each cluster take their place.
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
from clusterformer.attention.ring_steps import ring_entries, ring_step
from clusterformer.attention.text_cache import extend
from clusterformer.clustering.ring_cache import fill, make_ring_cache
from clusterformer.kernels.reference import argmax_first
from clusterformer.kernels.rows import append_columns

PREFIX = 4
"""Number of tensors of a cache that hold the first tokens: a count, points, keys and values."""

_RING = 4  # tensors of a ring cache: keys, values, positions and counts


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
        """Compute points (R, N, F) and anchors (C, F) or (R, C, F)."""

    @abstractmethod
    def coupling_columns(self, points: Tensor) -> tuple[Tensor, Tensor] | None:
        """Compute the columns of queries and keys, (R, N, F), that couple; None for none."""

    def cache(self, like: Tensor) -> Cache:
        """Make a cache of the first `dense_length` tokens, then of the last chunks of each cluster.

        Cost: O(1) time and memory per step, for any length.
        """
        if self.causal is not True:
            return super().cache(like)
        batch, rows, local = len(like), self.num_clusterings, self.local_heads
        cosine, space = self.similarity == "cosine", self.space
        features = space.out_features // rows if cosine else space.in_features  # of points
        coupled = self.head_width + (features if self.coupling else 0)
        far = like.new_zeros((self.num_heads - local) // rows * coupled)
        heads = like.new_zeros(batch, self.num_heads, 0, self.head_width)
        size = (self.look_back + 1) * self.chunk_size
        rings = make_ring_cache(batch * rows, self.num_clusters, size, (far, far))
        return (
            like.new_zeros(batch, dtype=torch.long),
            like.new_zeros(batch, rows, 0, features, dtype=torch.float32),
            heads,
            heads,
            *(x.unflatten(0, (batch, rows)) for x in rings),
            *self.near_ring(like),
        )

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Decode one token. Writes into `cache`, or a larger copy of it, and returns it."""
        points, anchors = self._own_points(hidden)
        count, *kept = cache[:PREFIX]
        position = int(count[0])  # the same in every row
        if position < self.dense_length:
            new = zip(kept, (self._by_text(points), k, v), strict=True)
            kept = [extend(rows, position, row) for rows, row in new]
            held = slice(position + 1)
            key, value = (rows[:, :, held].to(q.dtype) for rows in kept[1:])
            mixed = F.scaled_dot_product_attention(q, key, value)
            return mixed, (count + 1, *kept, *cache[PREFIX:])
        if position == self.dense_length and position:
            first, key, value = (rows[:, :, :position] for rows in kept)
            first = first.flatten(0, 1)
            cache = self._fill_rings(key, value, first, _nearest(first, anchors), cache)
        far = tuple(x.flatten(0, 1) for x in cache[PREFIX : PREFIX + _RING])
        near = cache[PREFIX + _RING :]
        local, parts, clusterings = self.local_heads, [], self.num_clusterings
        if local:
            part, near = self.step_near(q, k, v, near)
            parts.append(part)
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
        far = tuple(self._by_text(x) for x in far)
        return torch.cat(parts, 1), (count + 1, *cache[1:PREFIX], *far, *near)

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        mixed, grouping = self.forward(q, k, v, hidden=hidden)
        if grouping is None:  # no more than the first tokens
            points = self._by_text(self._own_points(hidden)[0])
            kept = cache[0] + k.shape[2], points, k.contiguous(), v.contiguous()
            return mixed, (*kept, *cache[PREFIX:])
        assert grouping.points is not None
        clusters = grouping.assignment.reshape(len(grouping.points), -1)
        return mixed, self._fill_rings(k, v, grouping.points, clusters, cache)

    def _fill_rings(
        self, k: Tensor, v: Tensor, points: Tensor, clusters: Tensor, cache: Cache
    ) -> Cache:
        """Put the first tokens of a text into empty rings, and none of them beside the rings.

        Args:
            k, v: (B, H, M, D).
            points: (R, M, F).
            clusters: Cluster of each token, (R, M).
            cache: Cache with empty rings.
        """
        local, clusterings = self.local_heads, self.num_clusterings
        near = self.fill_near(k, v, cache[PREFIX + _RING :])
        far = tuple(x.flatten(0, 1) for x in cache[PREFIX : PREFIX + _RING])
        if local < self.num_heads:
            key, extra = fold_heads(k[:, local:], clusterings), self.coupling_columns(points)
            if extra is not None:
                key = append_columns(key, extra[1])
            far = fill(far, clusters, ring_entries(key, fold_heads(v[:, local:], clusterings)))
        none = self._by_text(points)[:, :, :0], k[:, :, :0], v[:, :, :0]
        count = torch.full_like(cache[0], k.shape[2])
        return count, *none, *(self._by_text(x) for x in far), *near

    def _own_points(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Compute points and anchors of this layer's own centroids, as `forward` does."""
        with torch.autocast(hidden.device.type, enabled=False):
            return self.anchors(hidden.float(), None)

    def _by_text(self, rows: Tensor) -> Tensor:
        """Turn rows (R, ...) to (B, G, ...)."""
        return rows.unflatten(0, (-1, self.num_clusterings))


def _nearest(points: Tensor, anchors: Tensor) -> Tensor:
    """Find the clusters (R, M) of points (R, M, F)."""
    with torch.autocast(points.device.type, enabled=False):  # as `forward` assigns
        return argmax_first(anchors @ points.transpose(1, 2), 1)
