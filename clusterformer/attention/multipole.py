"""Multipole semantic attention (MuSe, Mitchell and Kersting, 2025).

B batch   H heads   N queries   M keys   D head width   E model width   C clusters
K kept clusters (seen key by key)
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.attention.base import AttentionCore, Cache, Causal, Grouping
from clusterformer.attention.block_tree import (
    Settings,
    expand_keys,
    merge,
    query_clusters,
    select_points,
    summarize_blocks,
    tree_attention,
)
from clusterformer.clustering.kmeans import cluster_capacity, cluster_means, nearest
from clusterformer.errors import require_at_least, require_whole
from clusterformer.kernels.chunking import capped_blocks
from clusterformer.kernels.grouping import sort
from clusterformer.kernels.multipole import Expansion, evaluate
from clusterformer.kernels.rows import gather_own, resort
from clusterformer.masks import mask_by_head
from clusterformer.seeded import draw_seeded, register_drawn


class MultipoleAttention(AttentionCore):
    """Attention from clusters of queries to clusters of keys through their moments.

    Queries and keys are clustered separately in each head. Each query centroid attends to all keys.
    It keeps the mass, mean key and mean value of each key cluster (monopole), and the covariance of
    values and keys of all clusters together (dipole). Each query attends to that summary by its
    difference from its centroid (algorithms 3-5). Gradients flow as if the clusters were constant.

    With a cluster for each key it is full attention, for any clusters of queries; with a cluster
    for each query too, for any clusters of keys. Beyond the paper:

    - exact_clusters: the key clusters of largest mass for a query centroid are not summarised;
      their keys are seen one by one, like the top keys in improved clustered attention. With all
      clusters exact it is full attention;
    - damped: the paper's covariances weigh all keys of a cluster equally, and overshoot where
      attention is peaked; here a cluster's covariance shrinks if few of its keys have weight.

    `causal=True` is strict. Attention is exact within blocks of `block_size` tokens. The tokens
    before them are seen through the binary tree of section 6, in which a block attends to its
    completed sibling. All is merged by log-sum-exp (eq. 8). The paper clusters the queries of the
    block that attends, later ones among them. Here the expansion points are the query centroids of
    the completed block, and each query takes the nearest: a block's clusters are computed once,
    and depend on no later token.

    Args:
        d_model: Width of the hidden states (E).
        num_heads: Number of heads (H).
        causal: Causal form: False or True.
        num_clusters: Number of clusters of queries and of keys (C); if causal, of each completed
            block.
        iterations: Number of k-means iterations; 1-5 in the paper.
        cap: Maximum size of a cluster, as a multiple of the mean size; at least 1. If causal, of
            keys only: no queries are gathered by their clusters.
        monopole: Use the mean values (table 3).
        dipole: Use the covariances.
        two_stage: Cluster the queries; without it all queries share one expansion point.
        damped: Shrink the covariance of a cluster if few of its keys have weight.
        exact_clusters: Number of key clusters that each query cluster sees key by key (K); 0 in
            the paper.
        block_size: Number of tokens in a block that sees itself exactly, if causal.
        seed: Seed of the number that starts k-means, which is kept in a buffer.

    Cost: O((N + M) C D iterations + N D K M / C) time, O((N + M) (C + D) + K M D) memory;
    log(N / block_size) times as much under causality, and O(N block_size D) for the blocks.
    """

    cross: ClassVar[bool] = True
    sees_all: ClassVar[bool] = True
    causal_forms: ClassVar[tuple[Causal, ...]] = (False, True)
    offset: Tensor

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        causal: Causal = False,
        num_clusters: int = 64,
        iterations: int = 3,
        cap: float = 2.0,
        monopole: bool = True,
        dipole: bool = True,
        two_stage: bool = True,
        damped: bool = False,
        exact_clusters: int = 0,
        block_size: int = 512,
        seed: int = 0,
    ) -> None:
        super().__init__(d_model, num_heads, causal=causal)
        require_whole(1, num_clusters=num_clusters, block_size=block_size)
        require_at_least(1, cap=cap)
        require_whole(0, iterations=iterations, exact_clusters=exact_clusters)
        if not (monopole or dipole):
            raise ValueError("monopole and dipole are both False; at least one must be True")
        self.settings = Settings(
            num_clusters, iterations, cap, monopole, dipole, two_stage, damped, exact_clusters,
            block_size,
        )  # fmt: skip
        offset = draw_seeded(seed, lambda generator: torch.rand(1, generator=generator))
        register_drawn(self, "offset", offset)

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
        grouping = None
        with torch.autocast(q.device.type, enabled=False):
            query, key, value = (x.float().flatten(0, 1) for x in (q, k, v))  # (B * H, N, D)
            query = query * self.head_width**-0.5
            if self.causal:
                mask = mask_by_head(key_mask, self.num_heads)
                values = tree_attention(query, key, value, mask, self.offset, self.settings)
            else:
                masks = (mask_by_head(mask, self.num_heads) for mask in (query_mask, key_mask))
                values, assignment = self._attend(query, key, value, *masks)
                grouping = Grouping(
                    assignment.unflatten(0, q.shape[:2]), self.settings.num_clusters
                )
        return values.unflatten(0, q.shape[:2]).to(q.dtype), grouping

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, query_mask: Tensor | None, key_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute values (B * H, N, D) and the cluster of each query (B * H, N)."""
        settings, length = self.settings, q.shape[1]
        assignment, count = query_clusters(q, query_mask, self.offset, settings, cap=settings.cap)
        # the export is asked for first: in one, the comparison would be a guard on the length
        few = not torch.compiler.is_exporting() and k.shape[1] <= settings.num_clusters
        if few and settings.monopole:  # a cluster for each key
            mask = None if key_mask is None else key_mask[:, None, None]
            mixed = F.scaled_dot_product_attention(
                q[:, None], k[:, None], v[:, None], mask, scale=1.0
            )
            return mixed[:, 0], assignment
        capacity = cluster_capacity(length, count, settings.cap) if settings.two_stage else length
        points, _ = cluster_means(q, assignment, count, query_mask)
        expansion = expand_keys(points, k, v, key_mask, self.offset, settings)
        groups = capped_blocks(sort(assignment, count, query_mask), capacity, query_mask)
        values, _ = evaluate(gather_own(q, groups), expansion)
        return resort(values, groups), assignment

    def cache(self, like: Tensor) -> Cache:
        """Make room for queries, keys and values, a count of tokens, and no summaries yet.

        The summary of a level is computed when a block is complete, and kept until the next block
        of the level replaces it.

        Cost: O(log N C D) per step, and O(C D) per token and level for the summaries.
        """
        if not self.causal:
            return super().cache(like)
        shape = like.shape[0], self.num_heads, self.settings.block_size, self.head_width
        rows = (like.new_zeros(shape, dtype=torch.float32) for _ in range(3))
        return *rows, torch.zeros(like.shape[0], dtype=torch.long, device=like.device)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Decode one token. Writes into `cache`, and returns one that may be longer."""
        with torch.autocast(q.device.type, enabled=False):
            values, cache = self._step(q.float(), k.float(), v.float(), cache)
        return values.to(q.dtype), cache

    def _step(self, q: Tensor, k: Tensor, v: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        *rows, count = cache[:4]
        fields = len(Expansion._fields)
        levels = [cache[at : at + fields] for at in range(4, len(cache), fields)]
        position, size = int(count[0]), self.settings.block_size
        if position == rows[0].shape[2]:
            rows = [F.pad(x, (0, 0, 0, position)) for x in rows]
        for stored, x in zip(rows, (q * self.head_width**-0.5, k, v), strict=True):
            stored[:, :, position] = x[:, :, 0]
        heads = q.shape[:2]
        query, keys, values = (x.flatten(0, 1) for x in rows)  # (B * H, N, D)
        query, block = query[:, position : position + 1], position // size
        seen = slice(block * size, position + 1)
        scores = query @ keys[:, seen].transpose(1, 2)
        out, mass = scores.softmax(-1) @ values[:, seen], scores.logsumexp(-1, keepdim=True)
        for level, summary in enumerate(levels):
            if block >> level & 1:
                expansion = Expansion(*(x.flatten(0, 1) for x in summary))
                expansion = select_points(expansion, nearest(query, expansion.points))
                far, far_mass = evaluate(query[:, None], expansion)
                out, mass = merge(out, mass, far[:, 0], far_mass[:, 0])
        done = position + 1
        if done % size == 0:
            blocks = done // size
            level = (blocks & -blocks).bit_length() - 1  # the largest block that ends here
            levels[level : level + 1] = [self._summarize(rows, slice(done - (size << level), done))]
        flat = (x for summary in levels for x in summary)
        return out.unflatten(0, heads), (*rows, count + 1, *flat)

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        mixed, _ = self.forward(q, k, v, hidden=hidden)
        length, size = q.shape[2], self.settings.block_size
        blocks, levels = length // size, list[Cache]()
        with torch.autocast(q.device.type, enabled=False):
            rows = [q.float() * self.head_width**-0.5, k.float(), v.float()]
            # Steps read the levels whose bit is set in the number of blocks. Others are replaced
            # before they are read: they hold the summary of the level above.
            for level in reversed(range(blocks.bit_length())):
                if blocks >> level & 1:
                    end = (blocks >> level << level) * size
                    summary = self._summarize(rows, slice(end - (size << level), end))
                levels.insert(0, summary)
        room = max(0, size - length)
        rows = [F.pad(x, (0, 0, 0, room)).contiguous() for x in rows]
        flat = (x for summary in levels for x in summary)
        return mixed, (*rows, cache[3] + length, *flat)

    def _summarize(self, rows: Sequence[Tensor], block: slice) -> tuple[Tensor, ...]:
        """Summarize a block of the text whose queries, keys and values are `rows` (B, H, N, D)."""
        queries, keys, values = (x[:, :, block].flatten(0, 1) for x in rows)
        expansion = summarize_blocks(queries, keys, values, self.offset, self.settings)
        return tuple(x.unflatten(0, rows[0].shape[:2]) for x in expansion)
