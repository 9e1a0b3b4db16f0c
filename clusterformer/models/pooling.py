"""Reduction of a text's hidden states to one vector.

B batch   N tokens   E model width
"""

from typing import Literal

from torch import Tensor

Pooling = Literal["mean", "max", "first"]


def pool(hidden: Tensor, mask: Tensor, how: Pooling = "mean") -> Tensor:
    """Take the mean or maximum over real tokens, or the first of them.

    Args:
        hidden: (B, N, E).
        mask: (B, N) bool, True at real tokens; a text without any gives zeros.
        how: "mean", "max" or "first".

    Returns:
        (B, E).
    """
    if how == "first":
        index = mask.int().argmax(1)[:, None, None].expand(-1, 1, hidden.shape[-1])
        return hidden.gather(1, index)[:, 0] * mask.any(1, keepdim=True)
    if how == "mean":
        total = hidden.masked_fill(~mask[..., None], 0.0).sum(1)
        return total / mask.sum(1, keepdim=True).clamp(min=1)
    if how == "max":
        lowest = hidden.masked_fill(~mask[..., None], float("-inf")).amax(1)
        return lowest.masked_fill(~mask.any(1, keepdim=True), 0.0)
    raise ValueError(f'pooling must be "mean", "max" or "first", got {how!r}')
