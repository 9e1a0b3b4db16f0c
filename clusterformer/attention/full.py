"""Softmax attention over all tokens: the standard of comparison.

B batch   H heads   N queries   M keys   D head width   E model width
"""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from clusterformer.attention.base import Cache, Causal, Grouping
from clusterformer.attention.softmax import full_attention
from clusterformer.attention.text_cache import TextCaching, extend


class FullAttention(TextCaching):
    """softmax(Q K^T / sqrt(D)) V over all real tokens (Vaswani et al., 2017, eq. 1).

    Args:
        d_model: Width of the hidden states (E).
        num_heads: Number of heads (H).
        causal: Causal form: False or True (a token attends to itself and the tokens before it).

    Cost: O(N M D) time, O(N + M) memory through the fused kernels of PyTorch.
    """

    cross: ClassVar[bool] = True
    sees_all: ClassVar[bool] = True
    independent_queries: ClassVar[bool] = True
    causal_forms: ClassVar[tuple[Causal, ...]] = (False, True)

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
        return full_attention(q, k, v, key_mask, causal=bool(self.causal)), None

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Decode one token. Writes into `cache`, or a larger copy of it, and returns it."""
        keys, values, count = cache
        position = int(count[0])  # the same in every row
        keys, values = (
            extend(rows.to(new.dtype), position, new) for rows, new in ((keys, k), (values, v))
        )
        held = slice(position + 1)
        mixed = F.scaled_dot_product_attention(q, keys[:, :, held], values[:, :, held])
        return mixed, (keys, values, count + 1)
