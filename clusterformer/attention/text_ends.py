"""Tokens at both ends of a text that all tokens see, and that see all: [CLS], [SEP].

B batch   H heads   N tokens   D head width   A additional columns   E tokens at the ends
G blocks   S slots of a block   J blocks that a block sees
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.attention.visibility import count_in_blocks
from clusterformer.kernels.blocks import Blocks, window_mask, windows
from clusterformer.kernels.chunk_attention import chunk_attention
from clusterformer.kernels.ordering import stable_order
from clusterformer.kernels.reference import widen
from clusterformer.kernels.rows import append_columns, gather_own, gather_rows, resort

Columns = tuple[Tensor, Tensor]


class TextEnds(NamedTuple):
    """Tokens at the ends of each text.

    Attributes:
        tokens: (B, E) their positions.
        there: (B, E) bool, False where a text is too short for so many; its token is then any.
    """

    tokens: Tensor
    there: Tensor


def text_ends(like: Tensor, count: int, key_mask: Tensor | None = None) -> TextEnds:
    """Find the first and the last real tokens of each text.

    Args:
        like: Any tensor (B, N, ...), for sizes and device.
        count: Number of tokens at each end; E is twice that.
        key_mask: (B, N), True at real tokens; None means all real.
    """
    batch, length = like.shape[:2]
    number = torch.arange(count, device=like.device)
    if key_mask is None:
        lengths = torch.full((batch, 1), length, device=like.device)
    else:
        lengths = key_mask.sum(1, keepdim=True)
    last = lengths - 1 - number  # (B, count)
    rank = torch.cat([number.expand(batch, count), last], 1)
    there = torch.cat([number < lengths, last >= count], 1)  # each token once
    tokens = rank.masked_fill(~there, 0)
    if key_mask is not None:
        tokens = stable_order((~key_mask).long()).gather(1, tokens)
    return TextEnds(tokens, there)


def attend_with_ends(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Blocks,
    ends: TextEnds | None,
    key_mask: Tensor | None = None,
    *,
    scale: float,
    causal: bool = False,
    extra: Columns | None = None,
    prefix: int = 0,
) -> Tensor:
    """Apply softmax attention over the blocks that a token sees, and the ends of its text.

    Tokens at the ends attend to all tokens of their text. A key counts once.

    Args:
        q, k, v: (B, H, N, D). The logits are scale * q . k.
        blocks: Index structure of each sequence.
        ends: Tokens at the ends, where nothing is causal; None for none.
        key_mask: (B, N), True at real tokens; None means all real.
        scale: Factor on the logits.
        causal: A token attends to itself and tokens before it only.
        extra: Additional columns of q and of k, (B, N, A) each, the same for all heads.
        prefix: Number of first tokens that attend to all before them, where strictly causal.

    Returns:
        (B, H, N, D) in the dtype of q; 0 at padding.

    Cost: O(N (J S + E) (D + A)) time, O(N J (D + A)) memory.
    """
    if ends is None:
        return chunk_attention(
            q, k, v, blocks, scale=scale, causal=causal, extra=extra, prefix=prefix
        )
    dtype, width = q.dtype, q.shape[-1]
    if q.device.type == "cpu":  # as `chunk_attention`: bfloat16 is slower there
        q, k, v = (x.float() for x in (q, k, v))
    with torch.autocast(q.device.type, enabled=False):
        if extra is not None:
            q, k = (append_columns(x, columns) for x, columns in zip((q, k), extra, strict=True))
            v = F.pad(v, (0, extra[0].shape[-1]))  # the fused kernel wants one width
        mixed = _attend_in_blocks(q, k, v, blocks, ends, scale)
        mixed = _replace_ends(mixed, q, k, v, ends, key_mask, scale)
    return mixed[..., :width].to(dtype)


def _attend_in_blocks(
    q: Tensor, k: Tensor, v: Tensor, blocks: Blocks, ends: TextEnds, scale: float
) -> Tensor:
    heads, reach = q.shape[1], blocks.visible.shape[-1]
    query, key, value = (x.transpose(1, 2).flatten(2) for x in (q, k, v))  # (B, N, H * D)
    query = gather_own(query, blocks).unflatten(-1, (heads, -1))
    key, value = (
        windows(gather_rows(x, blocks), reach).unflatten(-1, (heads, -1)) for x in (key, value)
    )
    blocked = query.shape[:2]
    query, key, value = (widen(x, None) for x in (query, key, value))  # (B * G, H, ..., D)
    shared = (_rows_of(x, ends.tokens).repeat_interleave(blocked[1], 0) for x in (k, v))
    key, value = (torch.cat(pair, 2) for pair in zip((key, value), shared, strict=True))
    met = windows(_slots_at_ends(blocks, ends), reach)  # (B, G, J * S)
    seen = window_mask(blocks)[:, :, 0] & ~met
    there = ends.there[:, None].expand(-1, blocked[1], -1)
    mask = torch.cat([seen, there], -1).flatten(0, 1)[:, None, None]
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    rows = resort(mixed.transpose(1, 2).flatten(2).unflatten(0, blocked), blocks)
    return rows.unflatten(-1, (heads, -1)).transpose(1, 2)


def _replace_ends(
    mixed: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ends: TextEnds,
    key_mask: Tensor | None,
    scale: float,
) -> Tensor:
    """Replace the values at the ends of each text by those of full attention."""
    mask = None
    if key_mask is not None:
        mask = (key_mask | ~key_mask.any(1, keepdim=True))[:, None, None]
    query = _rows_of(q, ends.tokens)
    found = F.scaled_dot_product_attention(query, k, v, attn_mask=mask, scale=scale)
    index = ends.tokens.masked_fill(~ends.there, q.shape[2])  # what is not there goes nowhere
    index = index[:, None, :, None].expand_as(found)
    return F.pad(mixed, (0, 0, 0, 1)).scatter(2, index, found.to(mixed.dtype))[:, :, :-1]


def count_with_ends(
    blocks: Blocks, ends: TextEnds | None, mask: Tensor, causal: bool = False
) -> Tensor:
    """Count the tokens that each token meets in the blocks that it sees, and at the ends.

    Args:
        blocks: Index structure of each sequence.
        ends: Tokens at the ends, where nothing is causal; None for none.
        mask: (B, N), True at real tokens.
        causal: Whether a token meets only those up to its own position.

    Returns:
        (B, N); any number at padding.
    """
    counts = count_in_blocks(blocks, causal)
    if ends is None:
        return counts
    width, reach = blocks.members.shape[-1], blocks.visible.shape[-1]
    met = windows(_slots_at_ends(blocks, ends), reach) & window_mask(blocks)[:, :, 0]
    slot = (blocks.slot - blocks.look_back * width).clamp(min=0)
    met_by_token = met.sum(-1).gather(1, slot // width)
    counts = counts + ends.there.sum(1, keepdim=True) - met_by_token
    return torch.where(at_ends(ends, mask.shape[1]), mask.sum(1, keepdim=True), counts)


def at_ends(ends: TextEnds, length: int) -> Tensor:
    """Tell which tokens are at the ends, (B, N)."""
    marks = ends.there.new_zeros(len(ends.there), length + 1)
    index = ends.tokens.masked_fill(~ends.there, length)
    return marks.scatter(1, index, True)[:, :length]


def _slots_at_ends(blocks: Blocks, ends: TextEnds) -> Tensor:
    """Tell which slots hold a token of the ends, (B, G + J - 1, S)."""
    marks = at_ends(ends, blocks.slot.shape[1])
    at = marks.gather(1, blocks.members.flatten(1)).view_as(blocks.members)
    return at & blocks.filled


def _rows_of(x: Tensor, tokens: Tensor) -> Tensor:
    """Gather rows of some tokens, (B, H, E, D)."""
    return x.gather(2, tokens[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))
