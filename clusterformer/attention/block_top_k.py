"""Attention to the blocks of keys whose mean fits the query (MoBA, Lu et al., 2025).

B batch   H heads   N tokens   D head width   S block size   G blocks   T blocks of a query
"""

from typing import ClassVar

import torch
from torch import Tensor

from clusterformer.attention.base import Cache, Causal, Grouping
from clusterformer.attention.block_selection import (
    Compaction,
    block_means,
    block_sums,
    choose_blocks,
    count_in_chosen_blocks,
    rows_of_blocks,
)
from clusterformer.attention.text_cache import TextCaching, attend_rows, extend
from clusterformer.errors import require_whole
from clusterformer.kernels.selected_blocks import selected_block_attention


class BlockTopKAttention(TextCaching):
    """Attention to the own block and the blocks with the best mean key (MoBA, arXiv 2502.13189).

    The text is cut into blocks of `block_size` tokens. The score of a block for a query is the
    product of the query with the mean of the block's keys (eq. 6); a query attends to its own block
    and to the `top_k` - 1 others of highest score, in one softmax. The gate has no weights: no
    gradient trains the choice. Each head chooses for itself. A later form (FlashMoBA, arXiv
    2511.11571) puts a short convolution on the keys first, which this class does not.

    `causal=True` is the published form, and equal to the brute-force code of MoonshotAI/MoBA: the
    other blocks are those before the own one, which are whole, and within its block a token sees
    up to itself. It neither leaks nor leaves a token without a key. Without causality (ours) any
    block may be chosen.

    With `block_size` * `top_k` of N or more it is full attention.

    Args:
        d_model: Width of the hidden states (E).
        num_heads: Number of heads (H).
        causal: Causal form: False or True.
        block_size: Number of tokens in a block (S).
        top_k: Number of blocks that a token attends to, its own among them.

    Cost: O(N (N / S + top_k S) D) time, O(N (N / S + top_k (S + D))) memory; a cached step
    O((N / S + top_k S) D) time.
    """

    causal_forms: ClassVar[tuple[Causal, ...]] = (False, True)

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        causal: Causal = False,
        block_size: int = 64,
        top_k: int = 3,
    ) -> None:
        super().__init__(d_model, num_heads, causal=causal)
        require_whole(1, block_size=block_size, top_k=top_k)
        self.block_size = block_size
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
    ) -> tuple[Tensor, Grouping]:
        size, causal = self.block_size, bool(self.causal)
        if not torch.compiler.is_exporting():
            size = min(size, q.shape[2])  # a text shorter than a block pays for its tokens
        packed = Compaction(key_mask)
        query, key, value = (packed.pack(x) for x in (q, k, v))
        with torch.autocast(q.device.type, enabled=False):
            with torch.no_grad():
                means = block_means(key, size, packed.mask)
                scores = query.to(means.dtype) @ means.transpose(2, 3)
                chosen, seen = choose_blocks(scores, size, self.top_k, packed.mask, causal=causal)
            mixed = selected_block_attention(
                query, key, value, chosen, seen,
                block_size=size, key_mask=packed.mask, causal=causal, scale=self.head_width**-0.5,
            )  # fmt: skip
        counts = count_in_chosen_blocks(chosen, seen, size, packed.mask, causal=causal)
        counts = packed.unpack(counts[..., None])[..., 0]
        own, blocks = packed.unpack(chosen[:, 0, :, :1])[..., 0], scores.shape[3]
        return packed.unpack(mixed).to(q.dtype), Grouping(own, blocks, counts=counts)

    def rows(self, k: Tensor, v: Tensor, hidden: Tensor) -> Cache:
        """Sum the keys of each block, (B, H, G, D)."""
        return (block_sums(k.float(), min(self.block_size, k.shape[2])),)

    def no_rows(self, empty: Tensor) -> Cache:
        return (empty.float(),)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Decode one token. Writes into `cache`, or a larger copy of it, and returns it."""
        keys, values, sums, count = cache
        position, size = int(count[0]), self.block_size  # the same in every row
        keys, values = (extend(x, position, new) for x, new in ((keys, k), (values, v)))
        own = position // size
        added = k.to(sums.dtype)
        if position % size:
            added = added + sums[:, :, own : own + 1]
        sums = extend(sums, own, added)
        with torch.autocast(q.device.type, enabled=False):  # as `forward` chooses
            scores = q.float() @ (sums[:, :, :own] / size).transpose(2, 3)
        index = rows_of_blocks(scores[:, :, 0], size, self.top_k)  # (B, H, T * S)
        mixed = attend_rows(q, keys, values, index, index <= position)
        return mixed, (keys, values, sums, count + 1)
