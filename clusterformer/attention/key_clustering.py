"""Attention of queries to keys of their own cluster, for a decoder with a long memory.

B batch   H heads   N queries   M keys   D head width   C clusters   G blocks   S block size
"""

from typing import ClassVar

import torch
from torch import Tensor

from clusterformer.attention.base import AttentionCore, Causal, Grouping
from clusterformer.attention.visibility import count_in_clusters, share_of_tokens
from clusterformer.errors import require_whole
from clusterformer.kernels.blocks import window_mask, windows
from clusterformer.kernels.chunking import cluster_chunks, equal_blocks
from clusterformer.kernels.gathered_attention import gathered_attention
from clusterformer.kernels.grouping import sort
from clusterformer.masks import mask_by_head
from clusterformer.seeded import draw_seeded


class KeyClusteringAttention(AttentionCore):
    """Attention of each query to three blocks of sorted keys (as ClusterFormer, eq. 5, 8).

    Queries and keys are assigned to the nearest of C random directions, the anchors, separately in
    each head. Keys are sorted by cluster and cut into C blocks of equal width. A query attends to
    the block that holds the middle of its cluster, and to the blocks before and after it.

    The output of a query depends on no other query. So a decoder can attend to its memory through
    it; under mechanisms that group queries (clustered, multipole) later tokens would affect it.

    With up to three clusters it is full attention.

    Args:
        d_model: Width of the hidden states (E).
        num_heads: Number of heads (H).
        causal: Causal form: only False.
        num_clusters: Number of clusters of keys, and of blocks (C).
        min_width: Minimum number of keys in a block; with 16, a query sees up to 48 keys whole.
        seed: Seed of the random anchors, which are drawn once and kept in a buffer.

    Cost: O((N + M) C D + N S D) time, O((N + M) (C + D)) memory.
    """

    cross: ClassVar[bool] = True
    independent_queries: ClassVar[bool] = True
    causal_forms: ClassVar[tuple[Causal, ...]] = (False,)
    anchors: Tensor

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        causal: Causal = False,
        num_clusters: int = 16,
        min_width: int = 16,
        seed: int = 0,
    ) -> None:
        super().__init__(d_model, num_heads, causal=causal)
        require_whole(1, num_clusters=num_clusters, min_width=min_width)
        self.num_clusters = num_clusters
        self.min_width = min_width
        shape = num_heads, num_clusters, self.head_width
        anchors = draw_seeded(seed, lambda generator: torch.randn(shape, generator=generator))
        self.register_buffer("anchors", torch.nn.functional.normalize(anchors, dim=-1))

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
    ) -> tuple[Tensor, Grouping]:
        with torch.autocast(q.device.type, enabled=False):
            query, key, value = (x.float().flatten(0, 1) for x in (q, k, v))  # (B * H, N, D)
            q_assignment, k_assignment = (self._nearest(x).flatten(0, 1) for x in (q, k))
            seen, mask = self._windows(k_assignment, mask_by_head(key_mask, self.num_heads))
            # Small groups of queries of one cluster, so that each group gathers its keys once.
            pair = 2 * self.num_clusters
            size = torch.sym_max(8, (q.shape[2] + pair - 1) // pair)
            q_mask = mask_by_head(query_mask, self.num_heads)
            grouped = sort(q_assignment, self.num_clusters, q_mask)
            groups = cluster_chunks(grouped, size, q_mask, look_back=0)
            owner = q_assignment.gather(1, groups.members[..., 0])
            index = owner[..., None].expand(-1, -1, seen.shape[-1])
            values = gathered_attention(
                query,
                key,
                value,
                groups.members,
                groups.filled,
                seen.gather(1, index),
                mask.gather(1, index)[:, :, None],
                scale=self.head_width**-0.5,
            )
        assignment, seen = (
            x.unflatten(0, q.shape[:2]) for x in (q_assignment, seen.masked_fill(~mask, -1))
        )
        grouping = Grouping(assignment, self.num_clusters, keys=seen)
        return values.unflatten(0, q.shape[:2]).to(q.dtype), grouping

    def keys_seen(self, grouping: Grouping | None, mask: Tensor) -> Tensor:
        assert grouping is not None
        assert grouping.keys is not None
        counts = count_in_clusters(grouping.assignment, grouping.keys, None, False)
        return share_of_tokens(counts, mask, False)

    def _nearest(self, x: Tensor) -> Tensor:
        """Find the nearest anchor (B, H, N) of each row of x (B, H, N, D)."""
        return (x.detach().float() @ self.anchors.float().transpose(1, 2)).argmax(-1)

    def _windows(self, assignment: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Find the keys that the queries of each cluster see, and their mask, (B * H, C, 3 S)."""
        grouped = sort(assignment, self.num_clusters, mask)
        blocks = equal_blocks(grouped, self.num_clusters, mask, 1, 1, self.min_width)
        keys = windows(blocks.members, 3)
        real = window_mask(blocks)[:, :, 0]
        ends = grouped.counts.cumsum(1)
        middle = torch.minimum(ends - (grouped.counts + 1) // 2, ends[:, -1:] - 1).clamp(min=0)
        slot = blocks.slot.gather(1, grouped.order.gather(1, middle))
        block = (slot // blocks.members.shape[-1] - blocks.look_back).clamp(min=0)  # (B * H, C)
        index = block[..., None].expand(-1, -1, keys.shape[-1])
        return keys.gather(1, index), real.gather(1, index)
