"""Cached decoding of strictly causal neural clustering attention.

B batch   H heads   M tokens kept   D head width   F features (width of the clustering space)

The cache has two parts. Up to `dense_length` tokens, keys and values of all of them, and their
points. With the token after them, rings of the last chunks of each cluster take their place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.attention.base import Cache
from clusterformer.attention.ring_steps import ring_entries, ring_step
from clusterformer.attention.text_cache import extend
from clusterformer.clustering.ring_cache import fill, make_ring_cache
from clusterformer.kernels.reference import argmax_first

if TYPE_CHECKING:
    from clusterformer.attention.neural_clustering import NeuralClusteringAttention

PREFIX = 4
"""Number of tensors of a cache that hold the first tokens: a count, points, keys and values."""


def empty_cache(core: NeuralClusteringAttention, like: Tensor) -> Cache:
    """Make an empty cache of `core`; `like` (B, ...) gives batch size, dtype and device."""
    size, local, batch = (core.look_back + 1) * core.chunk_size, core.local_heads, len(like)
    coupled = core.head_width + (core.space.out_features if core.coupling else 0)
    far = like.new_zeros((core.num_heads - local) * coupled)
    near = like.new_zeros(local * core.head_width)
    heads = like.new_zeros(batch, core.num_heads, 0, core.head_width)
    cosine, space = core.similarity == "cosine", core.space
    features = space.out_features if cosine else space.in_features  # where points lie
    return (
        like.new_zeros(batch, dtype=torch.long),
        like.new_zeros(batch, 0, features, dtype=torch.float32),
        heads,
        heads,
        *make_ring_cache(batch, core.num_clusters, size, (far, far)),
        *make_ring_cache(batch, 1, 2 * core.local_window, (near, near)),
    )


def decode(
    core: NeuralClusteringAttention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    points: Tensor,
    anchors: Tensor,
    cache: Cache,
) -> tuple[Tensor, Cache]:
    """Decode one token. Writes into `cache`, or a larger copy of it, and returns it.

    Args:
        core: The mechanism.
        q, k, v: (B, H, 1, D).
        points: Point of the token, (B, 1, F).
        anchors: Anchors of the centroids, (C, F).
        cache: Cache before the token.
    """
    count, *kept = cache[:PREFIX]
    position = int(count[0])  # the same in every row
    if position < core.dense_length:
        new = zip(kept, (points, k, v), strict=True)
        kept = [extend(rows, position, row) for rows, row in new]
        held = slice(position + 1)
        key, value = (rows[:, :, held].to(q.dtype) for rows in kept[1:])
        mixed = F.scaled_dot_product_attention(q, key, value)
        return mixed, (count + 1, *kept, *cache[PREFIX:])
    if position == core.dense_length and position:
        held = slice(position)
        first_points, key, value = kept[0][:, held], kept[1][:, :, held], kept[2][:, :, held]
        cache = fill_rings(core, key, value, first_points, _nearest(first_points, anchors), cache)
    local, scale, parts = core.local_heads, core.head_width**-0.5, []
    far, near = cache[PREFIX : PREFIX + 4], cache[PREFIX + 4 :]
    cluster = _nearest(points, anchors)[:, 0]
    if local:
        heads = q[:, :local], k[:, :local], v[:, :local]
        part, near = ring_step(*heads, torch.zeros_like(cluster), core.local_window, near, scale)
        parts.append(part)
    if local < core.num_heads:
        query, key, extra = q[:, local:], k[:, local:], core.coupling_columns(points)
        if extra is not None:
            columns = (x[:, None].expand(-1, query.shape[1], -1, -1).to(q.dtype) for x in extra)
            query, key = (torch.cat([x, y], -1) for x, y in zip((query, key), columns, strict=True))
        part, far = ring_step(query, key, v[:, local:], cluster, core.chunk_size, far, scale)
        parts.append(part)
    return torch.cat(parts, 1), (count + 1, *cache[1:PREFIX], *far, *near)


def keep_prefix(k: Tensor, v: Tensor, points: Tensor, cache: Cache) -> Cache:
    """Put the first tokens of a text, at most `dense_length`, into an empty cache.

    Args:
        k, v: (B, H, M, D).
        points: (B, M, F).
        cache: Empty cache.
    """
    return (cache[0] + k.shape[2], points, k.contiguous(), v.contiguous(), *cache[PREFIX:])


def fill_rings(
    core: NeuralClusteringAttention,
    k: Tensor,
    v: Tensor,
    points: Tensor,
    assignment: Tensor,
    cache: Cache,
) -> Cache:
    """Put the first tokens of a text into empty rings, and none of them beside the rings.

    Args:
        core: The mechanism.
        k, v: (B, H, M, D).
        points: (B, M, F).
        assignment: Cluster of each token, (B, M).
        cache: Cache with empty rings.
    """
    local, far, near = core.local_heads, cache[PREFIX : PREFIX + 4], cache[PREFIX + 4 :]
    if local:
        near = fill(near, torch.zeros_like(assignment), ring_entries(k[:, :local], v[:, :local]))
    if local < core.num_heads:
        key, extra = k[:, local:], core.coupling_columns(points)
        if extra is not None:
            columns = extra[1][:, None].expand(-1, key.shape[1], -1, -1)
            key = torch.cat([key, columns.to(key.dtype)], -1)
        far = fill(far, assignment, ring_entries(key, v[:, local:]))
    count = torch.full_like(cache[0], k.shape[2])
    return count, points[:, :0], k[:, :, :0], v[:, :, :0], *far, *near


def _nearest(points: Tensor, anchors: Tensor) -> Tensor:
    """Find the clusters (B, M) of points (B, M, F)."""
    with torch.autocast(points.device.type, enabled=False):  # as `forward` assigns
        return argmax_first(anchors @ points.transpose(1, 2), 1)
