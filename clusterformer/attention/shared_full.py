"""Full attention whose queries are its keys: what Reformer's attention approximates.

B batch   H heads   N tokens   D head width   E model width
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.attention.base import AttentionCore, Grouping
from clusterformer.clustering.unit_vectors import unit_vectors
from clusterformer.kernels.chunk_attention import LAST_RESORT


class SharedQKAttention(AttentionCore):
    """softmax(Q unit(Q)^T / sqrt(D)) V over all real tokens, a token itself only as a last resort.

    The key of a token is its query at unit length, as in Reformer (Kitaev et al., 2020, section 2).
    It is `shared-full` of the clustered attention paper (Vyas et al., 2020, table 1), for
    comparison: `ReformerAttention` with one bucket equals it. It has no causal form. A token counts
    as seen by itself.

    Args:
        d_model: Width of the hidden states (E).
        num_heads: Number of heads (H).
        causal: Causal form: only False.

    Cost: O(N^2 D) time, O(N^2) memory.
    """

    shared_qk: ClassVar[bool] = True
    sees_all: ClassVar[bool] = True

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
            query, value = (x if x.dtype == torch.float64 else x.float() for x in (q, v))
            own = torch.eye(q.shape[2], dtype=torch.bool, device=q.device)  # (N, N)
            bias = LAST_RESORT * own.to(query.dtype)
            if key_mask is not None:
                hidden_keys = ~(key_mask[:, None, None] | own)  # padding sees itself: no row of NaN
                bias = bias.masked_fill(hidden_keys, float("-inf"))  # (B, 1, N, N)
            out = F.scaled_dot_product_attention(query, unit_vectors(query), value, attn_mask=bias)
        return out.to(q.dtype), None
