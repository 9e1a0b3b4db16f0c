"""Neural clustering attention over a sequence that several processes share.

B batch   H heads   n tokens of this process   N tokens of the sequence   D head width
C clusters   F features (width of the clustering space)
"""

from __future__ import annotations

import torch
from torch import Tensor

from clusterformer.attention.base import AttentionCore
from clusterformer.attention.grouping import Grouping
from clusterformer.attention.neural_clustering import NeuralClusteringAttention
from clusterformer.kernels.blocks import Blocks, window_blocks
from clusterformer.kernels.reference import argmax_first
from clusterformer.sharding.block_attention import sharded_chunk_attention
from clusterformer.sharding.peers import Peers


class ShardedClustering(AttentionCore):
    """Neural clustering attention of which each process computes a share, with the same result.

    Means and normalisers of the centroids are added up over the processes. Each token's cluster,
    one integer, goes to everybody, so all know the blocks of the whole sequence. The rows of
    queries, keys and values go to the process that computes their block, and values come back.

    Args:
        core: The mechanism, whose weights this one uses; strictly causal or not causal.
        peers: The processes.

    Raises:
        ValueError: if the mechanism is causal="masked".
    """

    causal_forms = NeuralClusteringAttention.causal_forms

    def __init__(self, core: NeuralClusteringAttention, peers: Peers) -> None:
        if core.causal == "masked":
            raise ValueError('a shared sequence needs causal=True or False, got causal="masked"')
        super().__init__(core.d_model, core.num_heads, causal=core.causal)
        self.core, self.peers = core, peers

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
        """Mix values as `NeuralClusteringAttention` does; every tensor is this process's share.

        Raises:
            ValueError: if a text is so short that it would have full attention.
        """
        core = self.core
        if key_mask is None:
            key_mask = hidden.new_ones(hidden.shape[:2], dtype=torch.bool)
        masks = self.peers.gather(key_mask)
        lengths, whole = [mask.shape[1] for mask in masks], torch.cat(masks, 1)
        if bool((whole.sum(1) <= core.dense_length).any()):
            raise ValueError(
                f"a shared sequence needs more than dense_length = {core.dense_length} tokens, got "
                f"{int(whole.sum(1).min())}; set dense_length: 0"
            )
        with torch.autocast(hidden.device.type, enabled=False):
            points, anchors = core.anchors(hidden.float(), previous)
            assignment, updated = self._assign(points, anchors, key_mask)
            updated = core.read_centroids(updated)
        blocks = core.blocks_of(torch.cat(self.peers.gather(assignment), 1), whole)
        scale, local, parts = core.head_width**-0.5, core.local_heads, []

        def attend(heads: slice, blocks: Blocks, extra: tuple[Tensor, Tensor] | None) -> Tensor:
            return sharded_chunk_attention(
                q[:, heads], k[:, heads], v[:, heads], blocks, lengths, self.peers,
                scale=scale, causal=bool(self.causal), extra=extra,
            )  # fmt: skip

        if local:
            window = window_blocks(
                whole.shape[1], len(whole), core.local_window, whole, device=q.device
            )
            parts.append(attend(slice(local), window, None))
        if local < self.num_heads:
            parts.append(attend(slice(local, None), blocks, core.coupling_columns(points)))
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        grouping = Grouping(assignment, core.num_clusters, None, points, updated, core.similarity)
        return mixed, grouping

    def _assign(self, points: Tensor, anchors: Tensor, key_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Assign tokens and average them as `kernels.grouping.assign`, over all processes."""
        scores = (anchors @ points.transpose(1, 2)).masked_fill(
            ~key_mask[:, None], torch.finfo(points.dtype).min
        )
        largest = self.peers.maximum(scores.amax(-1, keepdim=True))  # (B, C, 1)
        weights = (scores - largest).exp().masked_fill(~key_mask[:, None], 0.0)
        summed = torch.cat([weights @ points, weights.sum(-1, keepdim=True)], -1)
        summed = self.peers.total(summed)  # (B, C, F + 1)
        total = summed[..., -1:].clamp(min=torch.finfo(summed.dtype).tiny)
        relative = scores.detach()
        if self.causal is not True:  # strictly causal assignment regards no other token
            relative = relative - largest - total.detach().log()
        return argmax_first(relative, 1), summed[..., :-1] / total
