"""Rotary positions in a sequence that several processes share.

B batch   n tokens of this process   E model width
"""

from __future__ import annotations

import torch
from torch import Tensor

from clusterformer.attention.multi_head import MultiHeadAttention
from clusterformer.sequence_parallel.sequence_group import SequenceGroup


class SharedPositions(MultiHeadAttention):
    """Multi-head attention whose tokens stand behind those of the processes before this one.

    `parallelize` makes it of a `MultiHeadAttention` with rotary positions.
    """

    group: SequenceGroup

    def positions(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """Find the position of each of this process's tokens (B, n, E) among all real ones.

        Returns:
            (B, 1, n) integers.
        """
        own = super().positions(x, key_mask)
        count = torch.full((len(x), 1), x.shape[1], device=x.device)
        if key_mask is not None:
            count = key_mask.sum(1, keepdim=True)
        counts = self.group.gather(count)  # one (B, 1) a process
        before = torch.stack(counts)[: self.group.rank].sum(0)
        return own + before[:, None]
