"""Caches that hold one row for each token of the text, and attention to some of them.

B batch   H heads   N tokens   M rows in use   D width   K rows seen
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.attention.base import AttentionCore, Cache


class TextCaching(AttentionCore):
    """A mechanism that decodes from the keys and values of all tokens of the text.

    Its cache holds keys, values, the `rows` of a subclass, and a count of tokens.
    """

    def rows(self, k: Tensor, v: Tensor, hidden: Tensor) -> Cache:
        """Make the further rows of the first tokens: k, v (B, H, N, D), hidden (B, N, E)."""
        return ()

    def no_rows(self, empty: Tensor) -> Cache:
        """Make the further rows of no token, as `empty` (B, H, 0, D) are its keys."""
        return ()

    def cache(self, like: Tensor) -> Cache:
        if not self.causal:
            return super().cache(like)
        empty = like.new_zeros(like.shape[0], self.num_heads, 0, self.head_width)
        count = empty.new_zeros(empty.shape[0], dtype=torch.long)
        return empty, empty, *self.no_rows(empty), count

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        mixed, _ = self.forward(q, k, v, hidden=hidden)
        rows = self.rows(k, v, hidden)
        return mixed, (k.contiguous(), v.contiguous(), *rows, cache[-1] + k.shape[2])


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
