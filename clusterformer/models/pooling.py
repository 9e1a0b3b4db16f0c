"""Reduction of a text's hidden states to one vector.

B batch   N tokens   E model width
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from clusterformer.sequence_parallel import SequenceGroup


Pooling = Literal["mean", "max", "first"]


def pool(
    hidden: Tensor, mask: Tensor, how: Pooling = "mean", group: SequenceGroup | None = None
) -> Tensor:
    """Take the mean or maximum over real tokens, or the first of them.

    Args:
        hidden: (B, N, E).
        mask: (B, N) bool, True at real tokens; a text without any gives zeros.
        how: "mean", "max" or "first".
        group: Processes of which each has a part of the tokens; None if this one has all.

    Returns:
        (B, E), the same in every process of the group.
    """
    if how == "first":
        index = mask.int().argmax(1)[:, None, None].expand(-1, 1, hidden.shape[-1])
        first, real = hidden.gather(1, index)[:, 0], mask.any(1, keepdim=True)
        if group is not None:
            parts = group.collect(torch.cat([first, real.to(first.dtype)], -1))
            first, reals = parts[..., :-1], parts[..., -1:].detach() > 0  # (P, B, E), (P, B, 1)
            first = first.gather(0, reals.int().argmax(0).expand_as(first[:1]))[0]
            real = reals.any(0)
        return first * real
    if how == "mean":
        total, count = hidden.masked_fill(~mask[..., None], 0.0).sum(1), mask.sum(1, keepdim=True)
        if group is not None:
            both = group.total(torch.cat([total.float(), count.float()], -1))
            total, count = both[..., :-1].to(total.dtype), both[..., -1:].detach()
        return total / count.clamp(min=1)
    if how == "max":
        lowest = hidden.masked_fill(~mask[..., None], float("-inf")).amax(1)
        if group is not None:
            lowest = group.collect(lowest).amax(0)
        return lowest.masked_fill(lowest == float("-inf"), 0.0)
    raise ValueError(f'pooling must be "mean", "max" or "first", got {how!r}')
