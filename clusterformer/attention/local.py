"""Attention within a sliding window.

B batch   H heads   N tokens   D head width
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.attention.base import AttentionCore, Cache, Causal, Grouping
from clusterformer.attention.softmax import window_attention
from clusterformer.attention.visibility import share_of_tokens
from clusterformer.errors import require_whole


class LocalAttention(AttentionCore):
    """Softmax attention of token i over the tokens j with |i - j| < window.

    With causal=True over i - window < j <= i. Padding adds no distance. With a window of N or
    more it is full attention.

    Args:
        d_model: Width of the hidden states (E).
        num_heads: Number of heads (H).
        causal: Causal form: False or True (a token attends to itself and tokens before it).
        window: Distance, in tokens, from which on a token is out of sight; at least 1.

    Cost: O(N window D) time, O(N D) memory on CPU; a cached step O(window D) for any length.
    """

    causal_forms: ClassVar[tuple[Causal, ...]] = (False, True)

    def __init__(
        self, d_model: int, num_heads: int, *, causal: Causal = False, window: int = 256
    ) -> None:
        super().__init__(d_model, num_heads, causal=causal)
        require_whole(1, window=window)
        self.window = window

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
        mixed = window_attention(q, k, v, self.window, key_mask, causal=bool(self.causal))
        return mixed, None

    def keys_seen(self, grouping: Grouping | None, mask: Tensor) -> Tensor:
        position, count = mask.cumsum(-1) - 1, mask.sum(-1, keepdim=True)
        counts = position.clamp(max=self.window - 1) + 1
        if not self.causal:
            counts = counts + (count - 1 - position).clamp(max=self.window - 1)
        return share_of_tokens(counts, mask, bool(self.causal))

    def cache(self, like: Tensor) -> Cache:
        """Make rings of the last `window` keys and values, and counts of tokens, (B,)."""
        if not self.causal:
            return super().cache(like)
        ring = like.new_zeros(like.shape[0], self.num_heads, self.window, self.head_width)
        return ring, ring.clone(), ring.new_zeros(ring.shape[0], dtype=torch.long)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Decode one token. Writes into `cache` and returns it."""
        keys, values, count = cache
        row = torch.arange(count.shape[0], device=count.device)
        keys[row, :, count % self.window] = k[:, :, 0].to(keys.dtype)
        values[row, :, count % self.window] = v[:, :, 0].to(values.dtype)
        count += 1
        held = torch.arange(self.window, device=count.device) < count[:, None]
        mixed = F.scaled_dot_product_attention(
            q, keys.to(q.dtype), values.to(q.dtype), attn_mask=held[:, None, None]
        )
        return mixed, cache

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        mixed, _ = self.forward(q, k, v, hidden=hidden)
        keys, values, count = cache
        last = torch.arange(k.shape[2], device=k.device)[-self.window :]
        for ring, x in ((keys, k), (values, v)):
            ring[:, :, last % self.window] = x[:, :, last].to(ring.dtype)
        return mixed, (keys, values, count + k.shape[2])
