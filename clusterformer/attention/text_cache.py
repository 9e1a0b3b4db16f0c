"""Caches that hold one row for each token of the text, and attention to some of them.

B batch   H heads   M rows in use   D width   K rows seen
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def extend(rows: Tensor, position: int, new: Tensor) -> Tensor:
    """Write a row (B, ..., 1, D) at `position`; writes into `rows`, or a larger copy of it.

    Growth by half: few copies, little unused room.
    """
    if position == rows.shape[-2]:
        room = rows.new_zeros(*rows.shape[:-2], position // 2 + 8, rows.shape[-1])
        rows = torch.cat([rows, room], -2)
    rows[..., position, :] = new[..., 0, :].to(rows.dtype)
    return rows


def attend_rows(q: Tensor, keys: Tensor, values: Tensor, index: Tensor, mask: Tensor) -> Tensor:
    """Attend from one query to chosen rows of a cache.

    Args:
        q: (B, H, 1, D).
        keys, values: (B, H, at least M, D).
        index: (B, H, K) rows; those not in `mask` may lie behind the last row.
        mask: (B, H, K) bool, True for rows that count.

    Returns:
        (B, H, 1, D).
    """
    index = index.clamp(max=keys.shape[2] - 1)[..., None].expand(-1, -1, -1, keys.shape[-1])
    key, value = (x.gather(2, index).to(q.dtype) for x in (keys, values))
    return F.scaled_dot_product_attention(q, key, value, attn_mask=mask[:, :, None])
