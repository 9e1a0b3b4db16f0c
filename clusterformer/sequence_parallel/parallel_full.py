"""Full attention over a shared sequence, by an all-to-all over heads (DeepSpeed-Ulysses).

Jacobs et al., "DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme Long
Sequence Transformer Models", 2023.

B batch   H heads   n tokens of this process   N tokens of the sequence   D head width   P processes
"""

from __future__ import annotations

import torch
from torch import Tensor

from clusterformer.attention.full import FullAttention
from clusterformer.attention.grouping import Grouping
from clusterformer.sequence_parallel.sequence_group import SequenceGroup


class ParallelFullAttention(FullAttention):
    """Full attention of which each process computes H / P heads, of all tokens.

    `parallelize` makes it of a `FullAttention`.
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
    ) -> tuple[Tensor, None]:
        """Mix values as `FullAttention` does; every tensor is this process's share."""
        if key_mask is None:
            key_mask = hidden.new_ones(hidden.shape[:2], dtype=torch.bool)
        masks = self.group.gather(key_mask)
        lengths, whole = [mask.shape[1] for mask in masks], torch.cat(masks, 1)
        q, k, v = (self._to_heads(x, lengths) for x in (q, k, v))
        mixed, _ = super().forward(q, k, v, hidden=hidden, query_mask=whole, key_mask=whole)
        return self._to_tokens(mixed, lengths), None

    def keys_seen(self, grouping: Grouping | None, mask: Tensor) -> None:
        """Say nothing: a process knows its own tokens."""

    def _to_heads(self, x: Tensor, lengths: list[int]) -> Tensor:
        """(B, H, n, D) of the own tokens -> (B, H / P, N, D) of the own heads."""
        batch, heads, length, width = x.shape
        size = self.group.size
        rows = x.unflatten(1, (size, -1)).permute(1, 3, 0, 2, 4)  # (P, n, B, H / P, D)
        rows = rows.flatten(2).flatten(0, 1)
        found = self.group.exchange(rows, [length] * size, lengths)
        return found.view(-1, batch, heads // size, width).permute(1, 2, 0, 3)

    def _to_tokens(self, x: Tensor, lengths: list[int]) -> Tensor:
        """(B, H / P, N, D) of the own heads -> (B, H, n, D) of the own tokens."""
        batch, heads, _, width = x.shape
        size, length = self.group.size, lengths[self.group.rank]
        rows = x.permute(2, 0, 1, 3).reshape(sum(lengths), -1)
        found = self.group.exchange(rows, lengths, [length] * size)
        found = found.view(size, length, batch, heads, width)
        return found.permute(2, 0, 3, 1, 4).flatten(1, 2)
