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
from clusterformer.kernels.dense_attention import dense_attention, is_dense
from clusterformer.kernels.ordering import count_up_to
from clusterformer.kernels.rows import repeat_rows

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
    if key_mask is not None:  # the token of that rank among the real ones
        tokens = count_up_to(key_mask.cumsum(1), tokens).clamp(max=length - 1)
    return TextEnds(tokens, there)


def repeat_ends(ends: TextEnds | None, count: int) -> TextEnds | None:
    """Repeat the ends of each text `count` times, for as many rows of blocks; None stays None."""
    return None if ends is None else TextEnds(*(repeat_rows(x, count) for x in ends))


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

    Cost: that of `chunk_attention`, and O(N E D) for the ends.
    """
    if ends is None:
        return chunk_attention(
            q, k, v, blocks, scale=scale, causal=causal, extra=extra, prefix=prefix
        )
    if is_dense(blocks, q.device, shared=len(blocks.slot) == len(q)):
        everywhere = at_ends(ends, q.shape[2])
        return dense_attention(q, k, v, blocks, scale=scale, extra=extra, global_mask=everywhere)
    mask = window_mask(blocks._replace(filled=blocks.filled & ~_slots_at_ends(blocks, ends)))
    query, key, value = (
        _rows_of(x.transpose(1, 2), ends.tokens).transpose(1, 2) for x in (q, k, v)
    )
    ask, offer = extra or (None, None)
    few_ask, few_offer = (None if x is None else _rows_of(x, ends.tokens) for x in (ask, offer))
    logits = _logits(q, key, ask, few_offer, ends.there, scale)
    values, masses = _mix(logits, value), logits.logsumexp(-1)
    if key_mask is not None:
        values = values.masked_fill(~key_mask[:, None, :, None], 0.0)
        masses = masses.masked_fill(~key_mask[:, None], torch.finfo(masses.dtype).min)
    more = values, masses
    mixed = chunk_attention(q, k, v, blocks, scale=scale, mask=mask, extra=extra, more=more)
    found = _mix(_logits(query, k, few_ask, offer, key_mask, scale), v)
    length = q.shape[2]
    index = ends.tokens.masked_fill(~ends.there, length)  # what is not there goes nowhere
    index = index[:, None, :, None].expand_as(found)
    mixed = F.pad(mixed, (0, 0, 0, 1))
    return mixed.scatter(2, index, found.to(mixed.dtype))[:, :, :length]


def _logits(
    query: Tensor,
    key: Tensor,
    ask: Tensor | None,
    offer: Tensor | None,
    seen: Tensor | None,
    scale: float,
) -> Tensor:
    """Logits of all queries with all keys, (B, H, queries, keys), in float32.

    Args:
        query, key: (B, H, any, D).
        ask, offer: Additional columns of queries and of keys, (B, any, A).
        seen: (B, keys), False at keys that do not count; None means all do.
        scale: Factor on the logits.
    """
    with torch.autocast(query.device.type, enabled=False):
        logits = query.float() @ key.float().transpose(2, 3)
        if ask is not None and offer is not None:
            logits = logits + (ask.float() @ offer.float().transpose(1, 2))[:, None]
        logits = scale * logits
        if seen is not None:  # no -inf: a text may be nothing but padding
            logits = logits.masked_fill(~seen[:, None, None], torch.finfo(logits.dtype).min)
        return logits


def _mix(logits: Tensor, value: Tensor) -> Tensor:
    """Values (B, H, queries, D) by logits, in float32."""
    with torch.autocast(value.device.type, enabled=False):
        return logits.softmax(-1) @ value.float()


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
    tokens = ends.tokens.masked_fill(~ends.there, -1)[:, None, None]
    return (blocks.members[..., None] == tokens).any(-1) & blocks.filled


def _rows_of(x: Tensor, tokens: Tensor) -> Tensor:
    """Gather rows (B, N, ...) of some tokens, (B, E, ...)."""
    index = tokens.view(*tokens.shape, *[1] * (x.dim() - 2))
    return x.gather(1, index.expand(-1, -1, *x.shape[2:]))
