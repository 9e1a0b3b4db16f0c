"""Full attention in some heads, a local window in the others: what a window alone adds.

B batch   H heads   N tokens   D head width
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.attention.base import Cache, Causal, Grouping
from clusterformer.attention.softmax import full_attention
from clusterformer.attention.text_cache import TextCaching, extend
from clusterformer.attention.visibility import count_in_blocks, share_of_tokens
from clusterformer.errors import require_whole
from clusterformer.kernels.chunk_attention import chunk_attention
from clusterformer.kernels.chunking import near_blocks


class PartlyLocalAttention(TextCaching):
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
    ) -> None:
        super().__init__(d_model, num_heads, causal=causal)
        require_whole(1, local_window=local_window)
        require_whole(0, local_heads=local_heads)
        local_heads = num_heads // 2 if local_heads is None else local_heads
        if not 0 <= local_heads <= num_heads:
            raise ValueError(
                f"local_heads must be in 0..num_heads, got {local_heads} with "
                f"num_heads = {num_heads}"
            )
        self.local_heads = local_heads
        self.local_window = local_window

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
        local, parts = self.local_heads, []
        if local:
            causal = bool(self.causal)
            near = near_blocks(hidden, self.local_window, key_mask, causal=causal)
            heads = q[:, :local], k[:, :local], v[:, :local]
            scale = self.head_width**-0.5
            parts.append(chunk_attention(*heads, near, scale=scale, causal=causal))
        if local < self.num_heads:
            heads = q[:, local:], k[:, local:], v[:, local:]
            parts.append(full_attention(*heads, key_mask, causal=bool(self.causal)))
        return torch.cat([part.to(q.dtype) for part in parts], 1), None

    def keys_seen(self, grouping: Grouping | None, mask: Tensor) -> Tensor:
        causal, local = bool(self.causal), self.local_heads
        blocks = near_blocks(mask, self.local_window, mask, causal=causal)
        near = share_of_tokens(count_in_blocks(blocks, causal), mask, causal)
        return (local * near + (self.num_heads - local) * mask.float()) / self.num_heads

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
            parts.append(F.scaled_dot_product_attention(q[:, heads], key, value))
        return torch.cat(parts, 1), (keys, values, cache[2] + 1)
