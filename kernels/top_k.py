"""The largest of many scores, whatever the rounding."""

import torch
from torch import Tensor


def top_k_indices(scores: Tensor, count: int, *, last: bool = False) -> Tensor:
    """Find the positions (..., count) of the largest scores (..., N), largest first.

    Scores whose first 12 bits of precision agree are equal: tokens repeat in any text, and another
    length or batch sums in another order. Position decides between equals, so neither affects the
    choice.

    Args:
        scores: Numbers of any floating type.
        count: At most N.
        last: Of equal scores, take the last ones instead of the first.
    """
    bits = scores.float().contiguous().view(torch.int32).long()
    ordered = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)  # as the numbers are
    position = torch.arange(scores.shape[-1], device=scores.device)
    if not last:
        position = scores.shape[-1] - 1 - position
    coarse = (ordered + 2**11) >> 12
    return (coarse * scores.shape[-1] + position).topk(count, dim=-1).indices
