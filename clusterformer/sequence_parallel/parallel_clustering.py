"""Neural clustering attention over a sequence that several processes share.

B batch   H heads   n tokens of this process   N tokens of the sequence   D head width
C clusters   F features (width of the clustering space)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from clusterformer.attention.grouping import Grouping
from clusterformer.attention.neural_clustering import NeuralClusteringAttention
from clusterformer.kernels.blocks import Blocks
from clusterformer.kernels.reference import argmax_first
from clusterformer.sequence_parallel.block_attention import parallel_chunk_attention
from clusterformer.sequence_parallel.sequence_group import SequenceGroup

SIMILARITIES = 2**21
"""Number of similarities that are computed at once, for memory: 8 MiB."""


class ParallelClustering(NeuralClusteringAttention):
    """Neural clustering attention of which each process computes a share, with the same result.

    Means and normalisers of the centroids are added up over the processes. Each token's cluster,
    one integer, goes to everybody, so all know the blocks of the whole sequence. The rows of
    queries, keys and values go to the process that computes their block, and values come back.

    `parallelize` makes it of a `NeuralClusteringAttention`, strictly causal or not causal.
    """

    shares_sequence = True
    group: SequenceGroup

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
        """Mix values as `NeuralClusteringAttention` does; every tensor is this process's share.

        Short texts, and the first tokens of strictly causal ones, have full attention here too.
        """
        if key_mask is None:
            key_mask = hidden.new_ones(hidden.shape[:2], dtype=torch.bool)
        masks = self.group.gather(key_mask)
        lengths, whole = [mask.shape[1] for mask in masks], torch.cat(masks, 1)
        start = sum(lengths[: self.group.rank])
        if whole.shape[1] <= self.dense_length:
            return self._replace_dense(torch.zeros_like(q), q, k, v, whole, start), None
        with torch.autocast(hidden.device.type, enabled=False):
            points, anchors = self.anchors(hidden.float(), previous)
            assignment, updated = self._assign(points, anchors, key_mask)
            updated = self.read_centroids(updated)
        blocks = self.blocks_of(torch.cat(self.group.gather(assignment), 1), whole)
        local, parts = self.local_heads, []

        def attend(heads: slice, blocks: Blocks, extra: tuple[Tensor, Tensor] | None) -> Tensor:
            return parallel_chunk_attention(
                q[:, heads], k[:, heads], v[:, heads], blocks, lengths, self.group,
                scale=self.head_width**-0.5, causal=bool(self.causal), extra=extra,
            )  # fmt: skip

        if local:
            parts.append(attend(slice(local), self.near_blocks(whole, whole), None))
        if local < self.num_heads:
            parts.append(attend(slice(local, None), blocks, self.coupling_columns(points)))
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        if self.dense_length:
            mixed = self._replace_dense(mixed, q, k, v, whole, start)
        grouping = Grouping(assignment, self.num_clusters, None, points, updated, self.similarity)
        return mixed, grouping._replace(texts=self.long_texts(whole))

    def keys_seen(self, grouping: Grouping | None, mask: Tensor) -> None:  # type: ignore[override]
        """Say nothing: a process knows its own tokens."""

    def _replace_dense(
        self, values: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: Tensor, start: int
    ) -> Tensor:
        """Replace the values of texts of up to `dense_length` real tokens by full attention's.

        Strictly causal, those of the first `dense_length` real tokens of every text. Their keys and
        values go to everybody; each process computes its own queries among them.

        Args:
            values: (B, H, n, D).
            q, k, v: (B, H, n, D).
            whole: Mask of the sequence, (B, N).
            start: Number of tokens of the processes before this one.
        """
        if self.causal is not True:
            short = (whole.sum(1) <= self.dense_length).nonzero()[:, 0]  # the same everywhere
            if not len(short):
                return values
            some, q, k, v = (x[short] for x in (values, q, k, v))
            found = self._replace_first(some, q, k, v, whole[short], start)
            return values.index_copy(0, short, found)
        return self._replace_first(values, q, k, v, whole, start)

    def _replace_first(
        self, values: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: Tensor, start: int
    ) -> Tensor:
        """Replace the values of the first `dense_length` real tokens; arguments as above."""
        size = min(self.dense_length, whole.shape[1])
        rank = (whole.cumsum(1) - 1)[:, start : start + q.shape[2]]
        inside = whole[:, start : start + q.shape[2]] & (rank < size)  # (B, n)
        # At least one: every process takes part in the sum of the gradients.
        found = inside.any(0).nonzero()
        count = int(found.max()) + 1 if len(found) else min(1, q.shape[2])
        q, k, v, first = (x[:, :, :count] for x in (q, k, v, values))
        rank, inside = rank[:, :count], inside[:, :count]
        slot = torch.where(inside, rank, size)[:, None, :, None].expand_as(k)
        rows = k.new_zeros(2, *k.shape[:2], size + 1, k.shape[3])
        rows = rows.scatter_add(3, torch.stack([slot, slot]), torch.stack([k, v]))
        key, value = self.group.total(rows[:, :, :, :size].contiguous())
        last = rank if self.causal is True else whole.sum(1, keepdim=True) - 1
        seen = torch.arange(size, device=q.device) <= last.clamp(min=0)[..., None]  # (B, n or 1, L)
        mixed = F.scaled_dot_product_attention(q, key, value, attn_mask=seen[:, None])
        first = torch.where(inside[:, None, :, None], mixed.to(first.dtype), first)
        return torch.cat([first, values[:, :, count:]], 2)

    def _assign(self, points: Tensor, anchors: Tensor, key_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Assign tokens and average them as `kernels.grouping.assign`, over all processes.

        Similarities (B, C, n) would take more memory than all else: they are computed for some
        tokens at a time, and again where they are needed again.
        """
        size = max(1, SIMILARITIES // (len(points) * self.num_clusters))
        pieces = list(zip(points.split(size, 1), key_mask.split(size, 1), strict=True))
        with torch.no_grad():
            largest = torch.stack([_largest(*x, anchors) for x in pieces])
            largest = self.group.maximum(largest.amax(0))[..., None]  # (B, C, 1)
        sums = [
            checkpoint(_sum, *x, anchors, largest, use_reentrant=False, preserve_rng_state=False)
            for x in pieces
        ]
        summed = self.group.total(torch.stack(sums).sum(0))  # (B, C, F + 1)
        total = summed[..., -1:].clamp(min=torch.finfo(summed.dtype).tiny)
        normalizer = largest + total.detach().log()
        if self.causal is True:  # strictly causal assignment regards no other token
            normalizer = torch.zeros_like(normalizer)
        with torch.no_grad():
            assignment = [argmax_first(_scores(*x, anchors) - normalizer, 1) for x in pieces]
        return torch.cat(assignment, 1), summed[..., :-1] / total


def _scores(points: Tensor, key_mask: Tensor, anchors: Tensor) -> Tensor:
    """Compute the similarity of some tokens with all clusters, (B, C, n)."""
    scores = anchors @ points.transpose(1, 2)
    return scores.masked_fill(~key_mask[:, None], torch.finfo(points.dtype).min)


def _largest(points: Tensor, key_mask: Tensor, anchors: Tensor) -> Tensor:
    """Find the largest similarity of each cluster, (B, C); the least possible without tokens."""
    scores = _scores(points, key_mask, anchors)
    if not scores.shape[-1]:
        return scores.new_full(scores.shape[:-1], torch.finfo(scores.dtype).min)
    return scores.amax(-1)


def _sum(points: Tensor, key_mask: Tensor, anchors: Tensor, largest: Tensor) -> Tensor:
    """Sum some points by membership, and the memberships, (B, C, F + 1)."""
    weights = (_scores(points, key_mask, anchors) - largest).exp()
    weights = weights.masked_fill(~key_mask[:, None], 0.0)
    return torch.cat([weights @ points, weights.sum(-1, keepdim=True)], -1)
