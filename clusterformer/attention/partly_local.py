"""Full attention in some heads, a local window in the others: what a window alone adds.

B batch   H heads   N tokens   D head width
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.attention.base import Cache, Causal, Grouping
from clusterformer.attention.local_heads import LocalHeads
from clusterformer.attention.shifted_keys import shift_rows
from clusterformer.attention.softmax import full_attention
from clusterformer.attention.text_cache import TextCaching, extend


class PartlyLocalAttention(LocalHeads, TextCaching):
    """Softmax attention over all tokens in some heads, over those nearby in the others.

    The yardstick of mechanisms with `local_heads` of their own: full attention with the same ones.
    Without local heads it is full attention.

    Args:
        d_model: Width of the hidden states (E).
        num_heads: Number of heads (H).
        causal: Causal form: False or True (a token attends to itself and tokens before it).
        local_heads: Number of heads that attend locally; None: half of them, rounded down.
        local_window: Number of tokens in a chunk of the local heads, which see their own chunk, the
            one before it and, unless causal, the one after it.
        shift_keys: Whether the other heads find a key by the token before it, whose k it has
            (`clusterformer.attention.shifted_keys`).

    Cost: O(N^2 D) time, O(N D) memory.
    """

    causal_forms: ClassVar[tuple[Causal, ...]] = (False, True)

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        causal: Causal = False,
        local_heads: int | None = None,
        local_window: int = 64,
        shift_keys: bool = False,
    ) -> None:
        super().__init__(
            d_model, num_heads, causal=causal, local_heads=local_heads, local_window=local_window
        )
        self.shift_keys = shift_keys

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
        local, parts = self.local_heads, self.attend_near(q, k, v, key_mask)
        if local < self.num_heads:
            key = shift_rows(k[:, local:], key_mask) if self.shift_keys else k[:, local:]
            heads = q[:, local:], key, v[:, local:]
            parts.append(full_attention(*heads, key_mask, causal=bool(self.causal)))
        return torch.cat([part.to(q.dtype) for part in parts], 1), None

    def keys_seen(self, grouping: Grouping | None, mask: Tensor) -> Tensor:
        return self.share_with_near(mask.float(), mask)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Decode one token. Writes into `cache`, or a larger copy of it, and returns it.

        Keys and values of all tokens are kept, also for the local heads.
        """
        position = int(cache[2][0])  # the same in every row
        local = self.local_heads
        keys, values = (
            extend(rows, position, new) for rows, new in zip(cache[:2], (k, v), strict=True)
        )
        start = max(0, (position // self.local_window - 1) * self.local_window)
        parts = []
        for heads, seen in (
            (slice(local), slice(start, position + 1)),
            (slice(local, None), slice(position + 1)),
        ):
            key, value = (rows[:, heads, seen].to(q.dtype) for rows in (keys, values))
            if self.shift_keys and heads.stop is None:
                key = shift_rows(key, None)
            parts.append(F.scaled_dot_product_attention(q[:, heads], key, value))
        return torch.cat(parts, 1), (keys, values, cache[2] + 1)
