"""Cached decoding of attention with clusters of queries and of keys.

B batch   H heads   L local heads   Z rows: B * (H - L)   N tokens   P clusters of a key
D head width

The cache is a `ClusterCache` of the keys and values of the first `dense_length` tokens, and of the
last ones of each cluster of each head, and of the local heads; and of the last z_k.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.attention.base import Cache
from clusterformer.attention.local_heads import LocalHeads
from clusterformer.attention.ring_steps import ClusterCache
from clusterformer.attention.shifted_keys import shift_rows
from clusterformer.attention.text_cache import extend
from clusterformer.clustering.ring_cache import fill, insert, look_up, make_ring_cache
from clusterformer.clustering.unit_vectors import unit_vectors

RECENCY_SPEED = 0.3
"""Recency over the weight that is learnt for it.

Adam moves every weight by about the same. A head that comes to prefer the first keys before it can
tell keys apart never learns to; one whose recency moves far slower learns less to use it.
"""


class QueryKeyDecoding(LocalHeads):
    """Decoding of `QueryKeyClusteringAttention`, which has the options declared here."""

    num_clusters: int
    num_clusterings: int
    key_clusters: int
    chunk_size: int
    dense_length: int
    alpha: float
    clusters: str
    shift_keys: bool
    query_space: nn.Linear
    key_space: nn.Linear | None
    slow_recency: nn.Parameter
    anchors: Tensor
    drawn_spaces: Tensor

    def points(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Compute z_q and z_k, (B, H - L, N, D), in float32.

        With shifted keys z_k is z_q. Where clusters are frozen, (B, H - L, N, 2 D): of W_q and W_k,
        then of these as drawn.
        """
        spaces = [space for space in (self.query_space, self.key_space) if space is not None]
        points = [self._directions(hidden, space.weight) for space in spaces]
        if self.clusters == "frozen":
            drawn = [self._directions(hidden, weight) for weight in self.drawn_spaces]
            points = [torch.cat(pair, -1) for pair in zip(points, drawn, strict=True)]
        return points[0], points[-1]

    def _directions(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Compute the unit vectors W x / |W x| of each head, (B, H - L, N, D)."""
        rows = F.linear(hidden.float(), weight.float())
        return unit_vectors(rows.unflatten(-1, (self.num_clusterings, -1)).transpose(1, 2))

    def found_by(self, z_k: Tensor, key_mask: Tensor | None) -> Tensor:
        """Choose the points by which keys are found, of z_k, and of a mask (B, N)."""
        return shift_rows(z_k, key_mask) if self.shift_keys else z_k

    @property
    def recency(self) -> Tensor:
        """Recency r of each head, (H - L,)."""
        return RECENCY_SPEED * self.slow_recency.float()

    def logit_factors(
        self, z_q: Tensor, z_k: Tensor, q: Tensor, k: Tensor, position: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Make queries and keys, (B, H - L, N, D + 1), whose products are the logits.

        Their last columns are 1 and r log(1 + t).

        Args:
            z_q, z_k: Points, (B, H - L, N, D or 2 D).
            q, k: Queries and keys of the same heads, (B, H - L, N, D); used if clusters are random.
            position: t of each key, (B, N) or (N,).
        """
        if self.clusters == "random":
            query, key = q.float() * self.head_width**-0.5, k.float()
        else:
            query, key = self.alpha * z_q[..., : self.head_width], z_k[..., : self.head_width]
        bias = self.recency[:, None] * position.float().log1p()[..., None, :]
        bias = bias.expand(key.shape[:3])[..., None]
        return torch.cat([query, torch.ones_like(query[..., :1])], -1), torch.cat([key, bias], -1)

    def nearest(self, points: Tensor, count: int = 1) -> Tensor:
        """Find the `count` nearest anchors, (Z, N, count), of points, by their last D columns."""
        similarity = points[..., -self.head_width :].detach() @ self.anchors.float().transpose(1, 2)
        return similarity.topk(count).indices.flatten(0, 1)

    def cache(self, like: Tensor) -> Cache:
        """Make a cache of the first `dense_length` keys and values, and rings of the last.

        Cost: O(1) time and memory per step, for any length.
        """
        if not self.causal:
            return super().cache(like)
        batch, heads, size = len(like), self.num_clusterings, 2 * self.chunk_size
        values = like.new_zeros(batch, heads, 0, self.head_width)
        keys = F.pad(values.float(), (0, 1))
        far = make_ring_cache(batch * heads, self.num_clusters, size, (keys, values))
        length = like.new_zeros(batch, dtype=torch.long)
        width = (2 if self.clusters == "frozen" else 1) * self.head_width
        last = values.float().new_zeros(batch, heads, 1, width)
        return ClusterCache(length, (keys, values, last), far, self.near_ring(like)).flat(heads)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Decode one token. Writes into `cache`, or a larger copy of it, and returns it."""
        length, (*first, last), far, near = ClusterCache.read(cache)
        local, (parts, near) = self.local_heads, self.step_near(q, k, v, near)
        position, value = int(length[0]), v[:, local:]
        with torch.autocast(hidden.device.type, enabled=False):
            z_q, point = self.points(hidden)
            z_k = last if self.shift_keys and position else point
            far_q, far_k = self.logit_factors(z_q, z_k, q[:, local:], k[:, local:], length[:, None])
            rows = far_k.flatten(0, 2), value.flatten(0, 2)
            for cluster in self.nearest(z_k, self.key_clusters)[:, 0].unbind(1):
                far = insert(far, cluster, rows)
            if position < self.dense_length:
                new = zip(first, (far_k, value), strict=True)
                first = [extend(rows, position, row) for rows, row in new]
                seen, mask = tuple(rows[:, :, : position + 1] for rows in first), None
            else:
                found, mask = look_up(far, self.nearest(z_q)[:, 0, 0], self.chunk_size)
                mask = mask.unflatten(0, value.shape[:2])[:, :, None]
                seen = tuple(x.unflatten(0, value.shape[:2]) for x in found)
                none = ~mask.any(-1, keepdim=True)
                mask = mask | none
            mixed = F.scaled_dot_product_attention(
                far_q, seen[0], seen[1].float(), attn_mask=mask, scale=1.0
            )
            if mask is not None:
                mixed = torch.where(none, value.float(), mixed)
        parts.append(mixed.to(v.dtype))
        held = ClusterCache(length + 1, (*first, point), far, near)
        return torch.cat(parts, 1), held.flat(self.num_clusterings)

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        mixed, _ = self.forward(q, k, v, hidden=hidden)
        local, length, copies = self.local_heads, k.shape[2], self.key_clusters
        held, value = ClusterCache.read(cache), v[:, local:]
        with torch.autocast(hidden.device.type, enabled=False):
            z_q, point = self.points(hidden)
            z_k = self.found_by(point, None)
            slots = self.nearest(z_k, copies).flatten(1)  # (Z, N * P)
            position = torch.arange(length, device=hidden.device)
            _, key = self.logit_factors(z_q, z_k, q[:, local:], k[:, local:], position)
        far = fill(held.far, slots, (_each(key, copies), _each(value, copies)))
        first = (x[:, :, : self.dense_length].contiguous() for x in (key, value))
        held = ClusterCache(
            held.length + length,
            (*first, point[:, :, -1:].contiguous()),
            far,
            self.fill_near(k, v, held.near),
        )
        return mixed, held.flat(self.num_clusterings)


def _each(rows: Tensor, copies: int) -> Tensor:
    """Repeat each of rows (B, H - L, N, D), giving (Z, N * P, D)."""
    rows = rows.flatten(0, 1)
    return rows[:, :, None].expand(-1, -1, copies, -1).flatten(1, 2)
