"""A short convolution before attention: a token takes in what stands just before it.

In `a b ... a` the second `a` looks for b, which stands behind its like. Once each token holds the
tokens before it, one layer of any attention can find b. Each channel has its own weights, and they
are learnt: the "Canon layer" before attention (Allen-Zhu, 2025, Physics of Language Models 4.1);
without the sum it is the convolution of H3 and Mamba. `shifted_keys` needs nothing learnt, but
belongs to single mechanisms.

B batch   N tokens   K tokens mixed   E model width
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.attention.shifted_keys import token_before


class ShortConvolution(nn.Module):
    """Depthwise causal convolution with a residual connection: x_t + sum_i w_i * x_(t - i), i < K.

    Args:
        width: Width of the hidden states (E).
        length: Number of tokens mixed (K), the token itself and those before it.
    """

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        bound = length**-0.5  # that of torch's convolutions
        self.weight = nn.Parameter(torch.empty(length, width).uniform_(-bound, bound))

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Mix x (B, N, E); mask (B, N), True at real tokens, the only ones read or changed."""
        if key_mask is None:
            return self.mix(F.pad(x, (0, 0, len(self.weight) - 1, 0)))
        before = token_before(key_mask)[..., None].expand_as(x) + 1  # 0: the row of zeros
        mixed, past = x + self.weight[0] * x, x
        for weight in self.weight[1:]:
            past = F.pad(past, (0, 0, 1, 0)).gather(1, before)
            mixed = mixed + weight * past
        return mixed.to(x.dtype).masked_fill(~key_mask[..., None], 0.0)

    def mix(self, x: Tensor) -> Tensor:
        """Mix all tokens of x (B, K - 1 + N, E) but the first K - 1, giving (B, N, E)."""
        first = len(self.weight) - 1
        mixed = own = x[:, first:]
        for back, weight in enumerate(self.weight):
            mixed = mixed + weight * x[:, first - back : x.shape[1] - back]
        return mixed.to(own.dtype)
