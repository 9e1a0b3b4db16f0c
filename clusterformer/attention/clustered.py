"""Clustered and improved clustered attention (Vyas, Katharopoulos, Fleuret, NeurIPS 2020).

B batch   H heads   N queries   M keys   D head width   C clusters   W hash bits   K kept keys
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.attention.base import AttentionCore, Causal, Grouping
from clusterformer.clustering.hamming import hamming_kmeans
from clusterformer.clustering.hashing import MAX_BITS, SignHash
from clusterformer.clustering.kmeans import cluster_means, spread
from clusterformer.errors import require_whole
from clusterformer.kernels.chunking import cluster_chunks
from clusterformer.kernels.gathered_attention import gathered_attention
from clusterformer.kernels.grouping import sort
from clusterformer.masks import mask_by_head


class ClusteredAttention(AttentionCore):
    """Attention of each cluster of queries through its mean query (eq. 3-6).

    Queries are hashed to the signs of random projections and clustered in Hamming space, separately
    in each head. V_i = softmax(mean(Q_c) K^T / sqrt(D)) V for every query i of cluster c.
    Gradients flow as if the assignment were constant. There is no causal form: the mean of a
    cluster holds queries of all positions, and so does its distribution over keys.

    With no fewer clusters than queries it is full attention, where queries that differ have
    different hashes.

    Args:
        d_model: Width of the hidden states (E).
        num_heads: Number of heads (H).
        causal: Causal form: only False.
        num_clusters: Number of clusters of queries (C); 100 in the paper's benchmark.
        bits: Number of hash bits (W), 1..63.
        iterations: Number of k-means iterations; 10 in the paper.
        seed: Seed of the random hash planes, which are drawn once and kept in a buffer.

    Cost: O(N (W D + C iterations) + C M D) time, O((N + M) D) memory.
    """

    cross: ClassVar[bool] = True
    sees_all: ClassVar[bool] = True
    causal_forms: ClassVar[tuple[Causal, ...]] = (False,)

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        causal: Causal = False,
        num_clusters: int = 100,
        bits: int = MAX_BITS,
        iterations: int = 10,
        seed: int = 0,
    ) -> None:
        super().__init__(d_model, num_heads, causal=causal)
        require_whole(1, num_clusters=num_clusters)
        require_whole(0, iterations=iterations)
        self.num_clusters = num_clusters
        self.iterations = iterations
        self.hash = SignHash(self.head_width, bits, seed)

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
            query_mask, key_mask = (
                mask_by_head(mask, self.num_heads) for mask in (query_mask, key_mask)
            )
            assignment = hamming_kmeans(
                self.hash(query), self.num_clusters, query_mask, self.iterations
            )
            values = self._attend(query, key, value, assignment, query_mask, key_mask)
        heads = q.shape[:2]
        grouping = Grouping(assignment.unflatten(0, heads), self.num_clusters)
        return values.unflatten(0, heads).to(q.dtype), grouping

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        assignment: Tensor,
        query_mask: Tensor | None,
        key_mask: Tensor | None,
    ) -> Tensor:
        """Compute values (B * H, N, D) of queries (B * H, N, D) in clusters (B * H, N)."""
        means, _ = cluster_means(q, assignment, self.num_clusters, query_mask)
        return spread(_attend_to_all(means, k, v, key_mask), assignment)


class ImprovedClusteredAttention(ClusteredAttention):
    """Clustered attention that is exact on the keys of largest weight (eq. 9-11).

    The `top_k` keys of largest weight in a cluster's distribution keep their common mass m, but
    each query of the cluster distributes m by its own dot products; the other keys keep the
    cluster's weights. It is never further from full attention than clustered attention, in the L1
    distance of the weights (proposition 2). There is no causal form, as in clustered attention.

    With top_k no less than the number of keys it is full attention.

    Args:
        d_model: Width of the hidden states (E).
        num_heads: Number of heads (H).
        causal: Causal form: only False.
        num_clusters: Number of clusters of queries (C).
        bits: Number of hash bits (W), 1..63.
        iterations: Number of k-means iterations.
        seed: Seed of the random hash planes.
        top_k: Number of exact keys per cluster (K); 32 in the paper.

    Cost: O(N (W D + C iterations + K D) + C M D) time, O((N + M) D + C M) memory.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        causal: Causal = False,
        num_clusters: int = 100,
        bits: int = MAX_BITS,
        iterations: int = 10,
        seed: int = 0,
        top_k: int = 32,
    ) -> None:
        super().__init__(
            d_model,
            num_heads,
            causal=causal,
            num_clusters=num_clusters,
            bits=bits,
            iterations=iterations,
            seed=seed,
        )
        require_whole(1, top_k=top_k)
        self.top_k = top_k

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        assignment: Tensor,
        query_mask: Tensor | None,
        key_mask: Tensor | None,
    ) -> Tensor:
        # the export is asked for first: in one, the comparison would be a guard on the length
        if not torch.compiler.is_exporting() and k.shape[1] <= self.top_k:
            return _attend_to_all(q, k, v, key_mask)
        scale = self.head_width**-0.5
        means, _ = cluster_means(q, assignment, self.num_clusters, query_mask)
        scores = (means * scale) @ k.transpose(1, 2)  # (B * H, C, M)
        if key_mask is not None:
            scores = scores.masked_fill(~key_mask[:, None], float("-inf"))
        top = scores.detach().topk(torch.sym_min(self.top_k, k.shape[1]), sorted=False).indices
        others = scores.softmax(-1).scatter(-1, top, 0.0)
        rest, mass = others @ v, 1 - others.sum(-1, keepdim=True)
        # Small groups of queries of one cluster, so that each group gathers its keys once.
        pair = 2 * self.num_clusters
        width = torch.sym_max(8, (q.shape[1] + pair - 1) // pair)
        grouped = sort(assignment, self.num_clusters, query_mask)
        blocks = cluster_chunks(grouped, width, query_mask, look_back=0)
        owner = assignment.gather(1, blocks.members[..., 0])
        seen = top.gather(1, owner[..., None].expand(-1, -1, top.shape[-1]))
        if key_mask is None:
            mask = torch.ones_like(seen, dtype=torch.bool)
        else:
            mask = key_mask.gather(1, seen.flatten(1)).view(seen.shape)
        index = blocks.members, blocks.filled, seen, mask[:, :, None]
        exact = gathered_attention(q, k, v, *index, scale=scale)
        return spread(rest, assignment) + spread(mass, assignment) * exact


def _attend_to_all(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Apply full attention: q (B * H, N or C, D), k and v (B * H, M, D), key_mask (B * H, M)."""
    mask = None if key_mask is None else key_mask[:, None, None]
    return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], mask)[:, 0]
