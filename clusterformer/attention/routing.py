"""Routing Transformer's attention by online k-means (Roy et al., TACL 2021).

B batch   H heads   N tokens   D head width   C clusters   S tokens that a centroid takes
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.attention.base import Cache, Causal, Grouping
from clusterformer.attention.local_heads import LocalHeads
from clusterformer.attention.visibility import (
    count_in_blocks,
    count_in_clusters,
    share_of_tokens,
)
from clusterformer.clustering.ring_cache import append, fill, make_ring_cache
from clusterformer.clustering.spherical import SphericalMeans
from clusterformer.errors import require_share, require_whole
from clusterformer.kernels.chunk_attention import chunk_attention
from clusterformer.kernels.chunking import cluster_chunks, single_block
from clusterformer.kernels.grouping import sort
from clusterformer.kernels.reference import argmax_first
from clusterformer.kernels.rows import pick_rows, repeat_rows, sum_rows


class RoutingAttention(LocalHeads):
    """Attention among the tokens nearest to each centroid; some heads attend locally instead.

    Layer-normalised queries and keys are compared with the centroids of each head (algorithm 1). A
    centroid takes the `window` queries and the `window` keys nearest to it, and these queries
    attend to these keys. A query that several centroids take gets the mean of their results; a
    query that none takes gets the value of its token. Centroids are buffers that follow the tokens
    by spherical k-means in training; see `SphericalMeans`.

    Causal forms:

    Where causal, keys are routed like the queries of their tokens (the paper sets K <- Q there;
    here keys keep a projection of their own).

    - `causal=True` is strict: a token goes to the nearest centroid, whatever other tokens do;
      chunks of `chunk_size` are cut within each cluster by rank, and a token sees its own chunk
      and the one before it, up to itself. No future token changes it.
    - `causal="masked"` is the paper's: the nearest `window` tokens of a centroid, later ones
      masked. It LEAKS: a later token may displace an earlier one from a cluster, so a change of the
      suffix changes outputs before it. For comparison only.

    One cluster with a window of N or more, without local heads, equals full attention.

    Args:
        d_model: Width of the hidden states (E).
        num_heads: Number of heads (H).
        causal: Causal form: False, True or "masked".
        num_clusters: Number of clusters (C), at least 1.
        window: Number of tokens that a centroid takes (S); None: ceil(n / C) of n real tokens.
        chunk_size: Number of tokens in a chunk with `causal=True`.
        local_heads: Number of heads that attend locally; None: half of them, rounded down.
        local_window: Number of tokens in a chunk of the local heads, which see their own chunk, the
            one before it and, unless causal, the one after it.
        decay: Decay of the moving average of centroids.
        seed: Seed of the centroids' random start.

    Cost: O(N C D + C S^2 D) time, O(C (N + S D)) memory.
    """

    causal_forms: ClassVar[tuple[Causal, ...]] = (False, True, "masked")

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        causal: Causal = False,
        num_clusters: int = 16,
        window: int | None = None,
        chunk_size: int = 64,
        local_heads: int | None = None,
        local_window: int = 64,
        decay: float = 0.999,
        seed: int = 0,
    ) -> None:
        super().__init__(
            d_model, num_heads, causal=causal, local_heads=local_heads, local_window=local_window
        )
        require_whole(1, num_clusters=num_clusters, window=window, chunk_size=chunk_size)
        require_share(decay=decay)
        self.num_clusters = num_clusters
        self.window = window
        self.chunk_size = chunk_size
        self.means = SphericalMeans(
            num_heads - self.local_heads, num_clusters, self.head_width, decay=decay, seed=seed
        )

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        hidden: Tensor,
        query_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        previous: Grouping | None = None,
    ) -> tuple[Tensor, Grouping | None]:
        local, parts, grouping = self.local_heads, self.attend_near(q, k, v, key_mask), None
        if local < self.num_heads:
            if self.training:
                self.means.move()
            queries, nearest = self._scores(q, key_mask)
            keys = queries if self.causal else self._scores(k, key_mask)[0]
            if self.causal is True:
                mask = key_mask
                if mask is not None:
                    mask = repeat_rows(mask, self.num_heads - local)
                grouped = sort(nearest.flatten(0, 1), self.num_clusters, mask)
                far = cluster_chunks(grouped, self.chunk_size, mask)
                heads, scale = (q[:, local:], k[:, local:], v[:, local:]), self.head_width**-0.5
                parts.append(chunk_attention(*heads, far, scale=scale, causal=True))
                grouping = Grouping(nearest, self.num_clusters, far)
            else:
                mixed, members, seen = self._routed(q, k, v, queries, keys, key_mask)
                parts.append(mixed)
                grouping = Grouping(nearest, self.num_clusters, keys=seen, queries=members)
        return torch.cat(parts, 1), grouping

    def keys_seen(self, grouping: Grouping | None, mask: Tensor) -> Tensor:
        causal, counts = bool(self.causal), []
        if self.local_heads:
            near = count_in_blocks(self.near_blocks(mask, mask), causal)
            counts.append(near[:, None].expand(-1, self.local_heads, -1))
        if grouping is not None and grouping.keys is not None:
            taken = grouping.assignment, grouping.keys, grouping.queries
            counts.append(count_in_clusters(*taken, causal))
        elif grouping is not None and grouping.blocks is not None:
            counts.append(count_in_blocks(grouping.blocks, causal).unflatten(0, (len(mask), -1)))
        return share_of_tokens(torch.cat([count.float() for count in counts], 1), mask, causal)

    @torch.no_grad()
    def _scores(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compare centroids with layer-normalised queries or keys by cosine, and find the nearest.

        Args:
            x: Queries or keys of all heads, (B, H, N, D).
            mask: (B, N), True at real tokens; None means all real.

        Returns:
            Cosines (B, H', C, N) and nearest centroids (B, H', N) of the H' routed heads.
        """
        with torch.autocast(x.device.type, enabled=False):
            points = F.layer_norm(x[:, self.local_heads :].float(), (self.head_width,))
            points = points * self.head_width**-0.5  # on the unit sphere
            scores = self.means(points)
        nearest = argmax_first(scores, 2)
        if self.training:
            self.means.observe(points, nearest, mask, x)
        return scores, nearest

    def _routed(
        self, q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attend from each centroid's nearest queries to its nearest keys.

        Args:
            q, k, v: Queries, keys and values of all heads, (B, H, N, D).
            queries, keys: Cosines of the routed heads, (B, H', C, N).
            mask: (B, N), True at real tokens; None means all real.

        Returns:
            Values (B, H', N, D), and the queries and keys that each centroid takes, (B, H', C, S),
            -1 where it takes none.
        """
        batch, heads, clusters, length = queries.shape
        size = self.window
        size = (length + clusters - 1) // clusters if size is None else torch.sym_min(size, length)
        filled: Tensor | None = None  # (B, 1, 1, S)
        if mask is not None:
            lengths = mask.sum(-1)[:, None, None, None]
            each = lengths if self.window else (lengths + clusters - 1) // clusters
            filled = torch.arange(size, device=q.device) < each.clamp(max=size)
            queries, keys = (x.masked_fill(~mask[:, None, None], -2.0) for x in (queries, keys))
        members = _nearest(queries, size)  # (B, H', C, S)
        seen = members if self.causal else _nearest(keys, size)
        start = torch.arange(batch, device=q.device)[:, None, None, None] * length
        head = torch.arange(self.num_heads, device=q.device)[self.local_heads :, None, None]

        def routed_rows(x: Tensor, index: Tensor) -> Tensor:  # to (B * H' * C, 1, S, D)
            rows = (start + index) * self.num_heads + head
            table = x.transpose(1, 2).flatten(0, 2)
            return pick_rows(table, rows.flatten()).view(-1, 1, size, x.shape[-1])

        key_mask = None if filled is None else filled.expand_as(members).flatten(0, 2)
        mixed = chunk_attention(
            routed_rows(q, members),
            routed_rows(k, seen),
            routed_rows(v, seen),
            single_block(size, members[..., 0].numel(), key_mask, device=q.device),
            scale=self.head_width**-0.5,
            mask=self._mask(members, seen, filled) if self.causal else None,
        )
        row = ((start + members) * heads + head - self.local_heads).flatten()
        weight = torch.ones_like(members, dtype=mixed.dtype)
        if filled is not None:
            weight = weight * filled
        weight = weight.flatten()
        own = v[:, self.local_heads :].transpose(1, 2).flatten(0, 2)  # (B * N * H', D)
        count = sum_rows(own.shape[0], row, weight[:, None])
        share = weight / count[:, 0].clamp(min=1)[row]
        mixed = sum_rows(own.shape[0], row, mixed.flatten(0, 2) * share[:, None])
        mixed = torch.where(count > 0, mixed.to(v.dtype), own)
        mixed = mixed.unflatten(0, (batch, length, heads)).transpose(1, 2)
        if filled is not None:
            members, seen = (x.masked_fill(~filled, -1) for x in (members, seen))
        return mixed, members, seen

    @staticmethod
    def _mask(members: Tensor, seen: Tensor, filled: Tensor | None) -> Tensor:
        """Mask keys after the token of each query, (B * H' * C, 1, S, S).

        The row of an empty slot would be empty; it attends to all, and nothing reads it.
        """
        mask = seen[..., None, :] <= members[..., None]
        if filled is not None:
            mask = mask & filled[..., None, :]
        return (mask | ~mask.any(-1, keepdim=True)).flatten(0, 2)[:, None]

    def cache(self, like: Tensor) -> Cache:
        """Make rings of the last two chunks of each cluster and of the local heads.

        Cost: O(1) time and memory per step, for any length.
        """
        if self.causal is not True:
            return super().cache(like)
        row = like.new_zeros(self.head_width)
        batch, local = like.shape[0], self.local_heads

        def of(heads: int, clusters: int, chunk: int) -> Cache:
            empty = make_ring_cache(batch * heads, clusters, 2 * chunk, (row, row))
            return tuple(x.unflatten(0, (batch, heads)) for x in empty)

        far = of(self.num_heads - local, self.num_clusters, self.chunk_size)
        return *of(local, 1, self.local_window), *far

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Decode one token. Writes into `cache`, or a larger copy of it, and returns it."""
        local, batch = self.local_heads, q.shape[0]
        parts: list[Tensor] = []
        next_cache: Cache = ()

        def attend(part: slice, cluster: Tensor, chunk: int, cache: Cache) -> None:
            nonlocal next_cache
            query, key, value = (x[:, part].flatten(0, 1) for x in (q, k, v))  # (B * H', 1, D)
            (keys, values), mask, new = append(
                tuple(x.flatten(0, 1) for x in cache),
                cluster.flatten(),
                (key[:, 0], value[:, 0]),
                chunk,
            )
            mixed = F.scaled_dot_product_attention(
                query, keys.to(q.dtype), values.to(q.dtype), attn_mask=mask[:, None]
            )
            parts.append(mixed.unflatten(0, (batch, -1)))
            next_cache += tuple(x.unflatten(0, (batch, -1)) for x in new)

        if local:
            single_cluster = torch.zeros(batch, local, dtype=torch.long, device=q.device)
            attend(slice(local), single_cluster, self.local_window, cache[:4])
        else:
            next_cache += cache[:4]
        if local < self.num_heads:
            attend(slice(local, None), self._scores(q, None)[1], self.chunk_size, cache[4:])
        else:
            next_cache += cache[4:]
        return torch.cat(parts, 1), next_cache

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        mixed, grouping = self.forward(q, k, v, hidden=hidden)
        batch, local, length = q.shape[0], self.local_heads, q.shape[2]
        near, far = cache[:4], cache[4:]

        def filled(part: slice, cluster: Tensor, empty: Cache) -> Cache:
            rows = k[:, part].flatten(0, 1), v[:, part].flatten(0, 1)
            rings = fill(tuple(x.flatten(0, 1) for x in empty), cluster.flatten(0, 1), rows)
            return tuple(x.unflatten(0, (batch, -1)) for x in rings)

        if local:
            single_cluster = torch.zeros(batch, local, length, dtype=torch.long, device=q.device)
            near = filled(slice(local), single_cluster, near)
        if grouping is not None:
            far = filled(slice(local, None), grouping.assignment, far)
        return mixed, (*near, *far)


def _nearest(scores: Tensor, count: int) -> Tensor:
    """Find positions (..., count) of the largest cosines (..., N), the first of equals.

    Cosine and position form one integer. So equal tokens, which repeat in any text, are chosen by
    their position, and other sequences of the batch do not affect the choice.
    """
    length = scores.shape[-1]
    backwards = torch.arange(length - 1, -1, -1, device=scores.device)
    return ((scores * 2**30).long() * length + backwards).topk(count).indices
