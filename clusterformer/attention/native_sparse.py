"""Compressed, selected and near keys, joined by gates (NSA, Yuan et al., ACL 2025).

B batch   H heads   N tokens   D head width   E model width   S block size   G blocks
T blocks of a query
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.attention.base import Cache, Causal, Grouping
from clusterformer.attention.block_selection import (
    Compaction,
    block_means,
    block_sums,
    choose_blocks,
    rows_of_blocks,
)
from clusterformer.attention.softmax import window_attention
from clusterformer.attention.text_cache import TextCaching, attend_rows, extend
from clusterformer.errors import require_whole
from clusterformer.kernels.merging import NO_MASS
from clusterformer.kernels.selected_blocks import selected_block_attention


class NativeSparseAttention(TextCaching):
    """Attention to compressed blocks, to the best blocks, and to a window (NSA, arXiv 2502.11089).

    Three branches, each with a softmax of its own, joined by gates sigmoid(g) of the hidden state
    (eq. 5):

    - compressed: each block that is whole, the own one with its last token, is one key and one
      value, its mean (as in fla-org's code) under a learned map that starts as the identity (eq.
      7);
    - selected: the own block and the `top_k` - 1 blocks of highest weight in the compressed branch
      (eq. 8-12). So the task's loss trains the choice through that branch. Each head chooses for
      itself; as published, heads that share keys choose together. The paper's experiments and
      fla-org's code also take the first block and the one before the own in any case; here they
      have to be chosen;
    - near: the last `window` tokens.

    The published gates need not sum to 1, and a token before the end of the first block has no key
    in the compressed branch. Here gates are divided by their sum over the branches that have keys:
    no token loses value. `normalize=False` is the published form, 0 for a branch without keys.

    As in the public code (fla-org, lucidrains), and unlike the paper, the branches share keys and
    values, blocks do not overlap, and both kinds of block have one size. `causal=True` does not
    leak. A form without causality is ours: every block is compressed, and the window reaches both
    ways.

    Args:
        d_model: Width of the hidden states (E).
        num_heads: Number of heads (H).
        causal: Causal form: False or True.
        block_size: Number of tokens in a block (S).
        top_k: Number of blocks that a token attends to token by token, its own among them.
        window: Distance, in tokens, from which on a token is out of the near branch.
        normalize: Division of the gates by their sum.

    Cost: O(N (N / S + top_k S + window) D) time; a cached step O((N / S + top_k S + window) D).
    """

    causal_forms: ClassVar[tuple[Causal, ...]] = (False, True)
    sees_all: ClassVar[bool] = True

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        causal: Causal = False,
        block_size: int = 32,
        top_k: int = 4,
        window: int = 64,
        normalize: bool = True,
    ) -> None:
        super().__init__(d_model, num_heads, causal=causal)
        require_whole(1, block_size=block_size, top_k=top_k, window=window)
        self.block_size = block_size
        self.top_k = top_k
        self.window = window
        self.normalize = normalize
        self.read_width(d_model)
        identity = torch.eye(self.head_width).expand(num_heads, -1, -1)
        self.key_map = nn.Parameter(identity.clone())
        self.value_map = nn.Parameter(identity.clone())

    def read_width(self, width: int) -> None:
        self.gates = nn.Linear(width, 3 * self.num_heads)
        nn.init.zeros_(self.gates.weight)
        nn.init.zeros_(self.gates.bias)

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
        size, causal = self.block_size, bool(self.causal)
        if not torch.compiler.is_exporting():
            size = min(size, q.shape[2])  # a text shorter than a block pays for its tokens
        packed = Compaction(key_mask)
        query, key, value = (packed.pack(x).float() for x in (q, k, v))
        mask, scale = packed.mask, self.head_width**-0.5
        with torch.autocast(q.device.type, enabled=False):
            keys, values = (
                block_means(x, size, mask).float() @ mapped.float()
                for x, mapped in ((key, self.key_map), (value, self.value_map))
            )
            scores = scale * query @ keys.transpose(2, 3)  # (B, H, N, G)
            there = self._compressed(scores, size, mask)
            short = (
                scores.masked_fill(~there, NO_MASS).softmax(-1).masked_fill(~there, 0.0) @ values
            )
            chosen, seen = choose_blocks(scores, size, self.top_k, mask, causal=causal)
            best = selected_block_attention(
                query, key, value, chosen, seen,
                block_size=size, key_mask=mask, causal=causal, scale=scale,
            )  # fmt: skip
            near = window_attention(query, key, value, self.window, mask, causal=causal)
            gates = self._gates(packed.pack(hidden), there.any(-1))
            mixed = _join(gates, (short, best, near))
        return packed.unpack(mixed).to(q.dtype), None

    def _compressed(self, scores: Tensor, size: int, mask: Tensor | None) -> Tensor:
        """Tell which compressed blocks a token reads, (B or 1, 1, N or 1, G)."""
        block = torch.arange(scores.shape[3], device=scores.device)
        length = scores.shape[2]
        position = torch.arange(length, device=scores.device)[:, None]
        whole = (position + 1) // self.block_size  # a text shorter than a block has none
        there = block < whole if self.causal else (block * size < length)[None]
        there = there[None, None]
        if mask is not None:
            there = there & (block * size < mask.sum(1)[:, None, None, None])
        return there

    def _gates(self, hidden: Tensor, compressed: Tensor) -> Tensor:
        """Compute gates (B, H, N, 3); `compressed` tells which tokens read compressed blocks."""
        linear = self.gates
        logits = F.linear(hidden.float(), linear.weight.float(), linear.bias.float())
        gates = logits.unflatten(-1, (self.num_heads, 3)).transpose(1, 2).sigmoid()
        others = torch.ones_like(gates[..., :2], dtype=torch.bool)
        there = torch.cat([compressed[..., None].expand_as(gates[..., :1]), others], -1)
        gates = gates.masked_fill(~there, 0.0)
        # least 1e-30: gates of very large inputs may all be 0
        return gates / (gates.sum(-1, keepdim=True) + 1e-30) if self.normalize else gates

    def rows(self, k: Tensor, v: Tensor, hidden: Tensor) -> Cache:
        """Sum keys and values over blocks, (B, H, G, D)."""
        size = min(self.block_size, k.shape[2])
        return tuple(block_sums(x.float(), size) for x in (k, v))

    def no_rows(self, empty: Tensor) -> Cache:
        return empty.float(), empty.float()

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Decode one token. Writes into `cache`, or a larger copy of it, and returns it."""
        keys, values, key_sums, value_sums, count = cache
        at, size = int(count[0]), self.block_size  # the same in every row
        own = at // size
        keys, values = (extend(x, at, new) for x, new in ((keys, k), (values, v)))
        key_sums, value_sums = (
            extend(x, own, new + x[:, :, own : own + 1] if at % size else new)
            for x, new in ((key_sums, k.float()), (value_sums, v.float()))
        )
        whole = (at + 1) // size
        with torch.autocast(q.device.type, enabled=False):  # as `forward` chooses
            scores = q.float() @ ((key_sums[:, :, :whole] / size) @ self.key_map.float()).mT
            scores = scores * self.head_width**-0.5
            means = (value_sums[:, :, :whole] / size) @ self.value_map.float()
            short = scores.softmax(-1) @ means
            gates = self._gates(hidden, hidden.new_full((1, 1, 1), whole > 0, dtype=torch.bool))
        index = rows_of_blocks(scores[:, :, 0, :own], size, self.top_k)  # (B, H, T * S)
        best = attend_rows(q, keys, values, index, index <= at)
        start = max(0, at + 1 - self.window)
        key, value = (x[:, :, start : at + 1].to(q.dtype) for x in (keys, values))
        near = F.scaled_dot_product_attention(q, key, value)
        mixed = _join(gates, (short, best.float(), near.float()))
        return mixed.to(q.dtype), (keys, values, key_sums, value_sums, count + 1)


def _join(gates: Tensor, branches: tuple[Tensor, ...]) -> Tensor:
    """Sum the branches (B, H, N, D) under their gates (B, H, N, 3)."""
    parts = zip(gates.unbind(-1), branches, strict=True)
    return torch.stack([gate[..., None] * branch for gate, branch in parts]).sum(0)
