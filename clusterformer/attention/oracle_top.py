"""Attention of each query to its best keys, found densely: a bound for what selects keys.

B batch   H heads   N queries   M keys   D head width   E model width   K kept keys
"""

from typing import ClassVar

import torch
from torch import Tensor

from clusterformer.attention.base import AttentionCore, Grouping
from clusterformer.attention.visibility import share_of_tokens
from clusterformer.errors import require_whole
from clusterformer.kernels.top_k import top_k_indices


class OracleTopAttention(AttentionCore):
    """softmax over the `top_k` keys of largest weight of each query (Vyas et al., 2020, table 1).

    It computes all dot products to find them, so it saves nothing: it is for comparison only, and
    shows what is lost with the other keys. It has no causal form. With top_k no less than the
    number of keys it is full attention.

    Args:
        d_model: Width of the hidden states (E).
        num_heads: Number of heads (H).
        causal: Causal form: only False.
        top_k: Number of keys that a query attends to (K); 32 in the paper.

    Cost: O(N M D) time, O(N M) memory.
    """

    cross: ClassVar[bool] = True
    independent_queries: ClassVar[bool] = True

    def __init__(
        self, d_model: int, num_heads: int, *, causal: bool = False, top_k: int = 32
    ) -> None:
        super().__init__(d_model, num_heads, causal=causal)
        require_whole(1, top_k=top_k)
        self.top_k = top_k

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
        with torch.autocast(q.device.type, enabled=False):
            query, key, value = (x if x.dtype == torch.float64 else x.float() for x in (q, k, v))
            scores = (query * self.head_width**-0.5) @ key.transpose(-1, -2)  # (B, H, N, M)
            if key_mask is not None:  # the least number: a row of padding alone gives no NaN
                least = torch.finfo(scores.dtype).min
                scores = scores.masked_fill(~key_mask[:, None, None], least)
            # of equal scores the first, so that batch and padding do not decide
            best = top_k_indices(scores.detach(), torch.sym_min(self.top_k, k.shape[2]))
            weights = scores.gather(-1, best).softmax(-1)
            out = torch.zeros_like(scores).scatter(-1, best, weights) @ value
        return out.to(q.dtype), None

    def keys_seen(self, grouping: Grouping | None, mask: Tensor) -> Tensor:
        counts = mask.sum(-1, keepdim=True).clamp(max=self.top_k).expand_as(mask)
        return share_of_tokens(counts, mask, causal=False)
