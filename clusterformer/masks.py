"""Masks, in one convention: bool, True = may attend.

B batch   H heads   N tokens   M keys
"""

import torch
from torch import Tensor

from clusterformer.kernels.rows import repeat_rows


def attention_mask(key_mask: Tensor, causal: bool) -> Tensor:
    """Make the mask of the keys that each query may see; every query sees at least one.

    Args:
        key_mask: (B, M), True at real tokens.
        causal: Whether a query sees no key behind its own position (then N = M).

    Returns:
        (B, 1, 1, M), or (B, 1, M, M) if causal. A row that would be empty (a sequence of padding
        only, a padded query before the first real token) sees the keys that it would see unpadded:
        its value is never read, and no softmax meets an empty row.
    """
    mask = key_mask[:, None, None]
    if causal:
        length = key_mask.shape[-1]
        triangle = torch.ones(length, length, dtype=torch.bool, device=key_mask.device).tril()
        mask = mask & triangle
        return mask | (triangle & ~mask.any(-1, keepdim=True))
    return mask | ~mask.any(-1, keepdim=True)


def padded_last(key_mask: Tensor | None) -> bool:
    """Tell whether all padding, (B, M), stands behind all real tokens; None means all real.

    A compiled graph does not ask what a mask holds: False.
    """
    if key_mask is None:
        return True
    if torch.compiler.is_compiling():
        return False
    return bool((key_mask[:, 1:] <= key_mask[:, :-1]).all())


def mask_if_padded(key_mask: Tensor) -> Tensor | None:
    """Return a mask (B, M); None if all are real, for which mechanisms are faster.

    A compiled graph does not ask what a mask holds, and keeps it.
    """
    if not torch.compiler.is_compiling() and bool(key_mask.all()):
        return None
    return key_mask


def mask_by_head(mask: Tensor | None, num_heads: int) -> Tensor | None:
    """Repeat (B, N) to (B * H, N), for cores that treat every head as a sequence of its own.

    A sequence of padding only counts as real: its values are never read, and no cluster is empty.
    """
    if mask is None:
        return None
    return repeat_rows(mask | ~mask.any(-1, keepdim=True), num_heads)
