"""The largest of many scores, whatever the rounding."""

import torch
import torch.nn.functional as F
from torch import Tensor


def top_k_indices(scores: Tensor, count: int, *, last: bool = False) -> Tensor:
    """Find the positions (..., count) of the largest scores (..., N), largest first.

    Scores whose first 12 bits of precision agree are equal: tokens repeat in any text, and another
    length or batch sums in another order. Position decides between equals, so neither affects the
    choice.

    Args:
        scores: Numbers of any floating type.
        count: At most N.
        last: Take the last of equal scores instead of the first.
    """
    if torch.onnx.is_in_onnx_export():
        return _onnx_top_k_indices(scores, count, last)
    bits = scores.float().contiguous().view(torch.int32).long()
    ordered = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)  # as the numbers are
    position = torch.arange(scores.shape[-1], device=scores.device)
    if not last:
        position = scores.shape[-1] - 1 - position
    coarse = (ordered + 2**11) >> 12
    return (coarse * scores.shape[-1] + position).topk(count, dim=-1).indices


def room_for(scores: Tensor, count: int) -> tuple[Tensor, int]:
    """Let `top_k_indices` find no more than there are.

    ONNX takes no smaller number in a shorter text, so scores of -inf are appended there.

    Args:
        scores: (..., N).
        count: Number of scores to find.

    Returns:
        Scores, and the number to find among them; an index of N or more is none.
    """
    if torch.onnx.is_in_onnx_export():
        return F.pad(scores, (0, count), value=float("-inf")), count
    return scores, torch.sym_min(count, scores.shape[-1])


def _onnx_top_k_indices(scores: Tensor, count: int, last: bool) -> Tensor:
    """Do the same without the bits of a number, which ONNX does not show.

    Veltkamp's splitting rounds to 12 bits. Of equal numbers a later one is made smaller, by less
    than any two others differ; or an earlier one.
    """
    scores = scores.float().clamp(-1e30, 1e30)
    scaled = scores * (2**12 + 1)
    coarse = (scaled - (scaled - scores)).double()
    position = torch.arange(scores.shape[-1], device=scores.device)
    step = coarse.abs().clamp(min=1e-30) * 2.0**-40
    return (coarse + step * (position if last else -position)).topk(count, dim=-1).indices
