"""Multipole semantic attention (MuSe, Mitchell and Kersting, 2025).

B batch   H heads   N queries   M keys   D head width   C clusters   L levels of the tree
"""

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
    remember,
    through,
    tree_attention,
)
from clusterformer.clustering.kmeans import cluster_means, most_points, nearest
from clusterformer.kernels.blocks import capped_blocks
from clusterformer.kernels.multipole import Expansion, evaluate
from clusterformer.kernels.reference import sort
from clusterformer.kernels.rows import gather_own, resort
from clusterformer.masks import mask_by_head


class MultipoleAttention(AttentionCore):
    """All keys, seen from afar: clusters of queries attend to clusters of keys by their moments.

    Queries and keys are clustered separately, each head by itself. Each query centroid attends to
    all keys and keeps of each key cluster its mass, mean key and mean value (monopole), and of
    all together how values vary with keys (dipole); each query attends to that with what sets it
    apart from its centroid (algorithms 3-5). Gradients flow as if the clusters were constant.

    With a cluster for each key it is full attention, whichever way queries are clustered; with a
    cluster for each query too, whichever way keys are. Beyond the paper:

    - exact_clusters: the key clusters of most mass for a query centroid are not summarised, their
      keys count one by one, as the best keys do in improved clustered attention. With all
      clusters exact it is full attention;
    - damped: the paper's covariances hold all keys of a cluster alike, and overshoot where
      attention is peaked; a cluster's then counts only as far as many of its keys are looked at.

    `causal=True` is strict: attention is exact within blocks of `block_size` tokens; before that,
    the binary tree of section 6 sees completed blocks only, as long as the stretch from their
    sibling's start, and all is merged by log-sum-exp (eq. 8). The paper clusters the queries of
    the block that looks on, later ones among them; here the expansion points are the query
    centroids of the completed block that is looked at, and each query takes the nearest: a
    block's clusters are computed once, and nothing depends on what comes later.

    Args:
        d_model: E.
        num_heads: H.
        causal: False or True.
        num_clusters: C, of queries and of keys; under causality, of each completed block.
        iterations: Of k-means, 1-5 in the paper.
        cap: Most points a cluster, in multiples of the mean cluster size; at least 1.
        monopole: Whether the mean values take part (table 3).
        dipole: Whether the covariances do.
        two_stage: Whether queries are clustered; else all share one expansion point.
        damped: Whether covariances shrink where few keys of a cluster are looked at.
        exact_clusters: R, key clusters that each query cluster sees key by key; 0 in the paper.
        block_size: Tokens a block that sees itself exactly, under causality.
        seed: Of the number from which k-means' starts are drawn; it lies in a buffer.

    Cost: O((N + M) C D iterations + N D R M / C) time, O((N + M) (C + D) + R M D) memory;
    log(N / block_size) times as much under causality, and O(N block_size D) for the blocks.
    """

    cross: ClassVar[bool] = True
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
        for name, value, least in (
            ("num_clusters", num_clusters, 1),
            ("iterations", iterations, 0),
            ("cap", cap, 1),
            ("exact_clusters", exact_clusters, 0),
            ("block_size", block_size, 1),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if not (monopole or dipole):
            raise ValueError("monopole and dipole cannot both be False: nothing would be left")
        self.settings = Settings(
            num_clusters, iterations, cap, monopole, dipole, two_stage, damped, exact_clusters,
            block_size,
        )  # fmt: skip
        self.register_buffer("offset", torch.rand(1, generator=torch.Generator().manual_seed(seed)))

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
        """Values (B * H, N, D) and the cluster of each query (B * H, N)."""
        settings, length = self.settings, q.shape[1]
        assignment, count = query_clusters(q, query_mask, self.offset, settings)
        capacity = most_points(length, count, settings.cap) if settings.two_stage else length
        points, _ = cluster_means(q, assignment, count, query_mask)
        expansion = expand_keys(points, k, v, key_mask, self.offset, settings)
        groups = capped_blocks(sort(assignment, count, query_mask), capacity, query_mask)
        values, _ = evaluate(gather_own(q, groups), expansion)
        return resort(values, groups), assignment

    def cache(self, like: Tensor) -> Cache:
        """Queries, keys and values so far, their number, and what is known of completed blocks.

        A level's memory is computed when its block is complete, and stands until the next one
        takes its place: O(log N C D) a step, and O(C D) a token and level for the memories.
        """
        if not self.causal:
            return super().cache(like)
        shape = like.shape[0], self.num_heads, self.settings.block_size, self.head_width
        rows = (like.new_zeros(shape, dtype=torch.float32) for _ in range(3))
        return *rows, torch.zeros(like.shape[0], dtype=torch.long, device=like.device)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """One token further. Writes into `cache`, and hands back one that may be longer."""
        *rows, count = cache[:4]
        fields = len(Expansion._fields)
        levels = [cache[at : at + fields] for at in range(4, len(cache), fields)]
        place, size = int(count[0]), self.settings.block_size
        if place == rows[0].shape[2]:
            rows = [F.pad(x, (0, 0, 0, place)) for x in rows]
        for kept, x in zip(rows, (q * self.head_width**-0.5, k, v), strict=True):
            kept[:, :, place] = x[:, :, 0]
        heads = q.shape[:2]
        query, keys, values = (x.flatten(0, 1) for x in rows)  # (B * H, N, D)
        query, block = query[:, place : place + 1], place // size
        seen = slice(block * size, place + 1)
        scores = query @ keys[:, seen].transpose(1, 2)
        out, mass = scores.softmax(-1) @ values[:, seen], scores.logsumexp(-1, keepdim=True)
        for level, memory in enumerate(levels):
            if block >> level & 1:
                known = Expansion(*(x.flatten(0, 1) for x in memory))
                known = through(known, nearest(query, known.points))
                far, far_mass = evaluate(query[:, None], known)
                out, mass = merge(out, mass, far[:, 0], far_mass[:, 0])
        done = place + 1
        if done % size == 0:
            blocks = done // size
            level = (blocks & -blocks).bit_length() - 1  # the largest block that ends here
            span = size << level
            query, keys, values = (x[:, :, done - span : done].flatten(0, 1) for x in rows)
            known = remember(query, keys, values, self.offset, self.settings)
            levels[level : level + 1] = [tuple(x.unflatten(0, heads) for x in known)]
        flat = (x for memory in levels for x in memory)
        return out.unflatten(0, heads).to(q.dtype), (*rows, count + 1, *flat)
