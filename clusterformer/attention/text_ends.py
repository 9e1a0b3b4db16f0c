"""Tokens at both ends of a text that all tokens see, and that see all: [CLS], [SEP].

B batch   H heads   N tokens   D head width   A additional columns   L tokens at the ends
G blocks   S slots of a block   J blocks that a block sees
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.attention.visibility import count_in_blocks
from clusterformer.kernels.blocks import Blocks, window_mask, windows
from clusterformer.kernels.ordering import count_up_to
from clusterformer.kernels.rows import pick_tokens, repeat_rows


class TextEnds(NamedTuple):
    """Tokens at the ends of each text.

    Attributes:
        tokens: (B, L) their positions.
        there: (B, L) bool, False where a text is too short for so many; its token is then any.
    """

    tokens: Tensor
    there: Tensor


def text_ends(like: Tensor, count: int, key_mask: Tensor | None) -> TextEnds:
    """Find the first and the last real tokens of each text.

    Args:
        like: Any tensor (B, N, ...), for sizes and device.
        count: Number of tokens at each end; L is twice that.
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


def repeat_ends(ends: TextEnds, count: int) -> TextEnds:
    """Repeat the ends of each text `count` times, for as many rows of blocks."""
    return TextEnds(*(repeat_rows(x, count) for x in ends))


def attend_to_ends(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ends: TextEnds,
    key_mask: Tensor | None,
    added: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Attend from all tokens to the ends of their text, in float32.

    Args:
        q, k, v: (B, H, N, D). The logits are scale * (q . k + added).
        ends: Tokens at the ends.
        key_mask: (B, N), True at real tokens; None means all real.
        added: (B, H, N, L), or None for none.
        scale: Factor on the logits.

    Returns:
        Values (B, H, N, D) and masses (B, H, N), see `kernels.merging`; of no weight at padding.
    """
    logits = _logits(q, pick_tokens(k, ends.tokens), added, ends.there, scale)
    values, masses = _mix(logits, pick_tokens(v, ends.tokens)), logits.logsumexp(-1)
    if key_mask is not None:
        padding = ~key_mask[:, None]
        values = values.masked_fill(padding[..., None], 0.0)
        masses = masses.masked_fill(padding, torch.finfo(masses.dtype).min)
    return values, masses


def attend_from_ends(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ends: TextEnds,
    key_mask: Tensor | None,
    added: Tensor | None,
    scale: float,
) -> Tensor:
    """Attend from the ends to all tokens of their text: (B, H, L, D) in float32.

    Arguments are those of `attend_to_ends`, but `added` is (B, H, L, N).
    """
    return _mix(_logits(pick_tokens(q, ends.tokens), k, added, key_mask, scale), v)


def put_at_ends(values: Tensor, ends: TextEnds, found: Tensor) -> Tensor:
    """Replace values (B, H, N, D) at the ends by what was found for them, (B, H, L, D)."""
    length = values.shape[2]
    index = ends.tokens.masked_fill(~ends.there, length)  # what is not there goes nowhere
    index = index[:, None, :, None].expand_as(found)
    values = F.pad(values, (0, 0, 0, 1))
    return values.scatter(2, index, found.to(values.dtype))[:, :, :length]


def count_with_ends(blocks: Blocks, ends: TextEnds | None, mask: Tensor, causal: bool) -> Tensor:
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
    marks = at_ends(ends, mask.shape[1])
    met = windows(slots_at_ends(blocks, marks), reach) & window_mask(blocks)[:, :, 0]
    slot = (blocks.slot - blocks.look_back * width).clamp(min=0)
    met_by_token = met.sum(-1).gather(1, slot // width)
    counts = counts + ends.there.sum(1, keepdim=True) - met_by_token
    return torch.where(marks, mask.sum(1, keepdim=True), counts)


def at_ends(ends: TextEnds, length: int) -> Tensor:
    """Tell which tokens are at the ends, (B, N)."""
    marks = ends.there.new_zeros(ends.there.shape[0], length + 1)
    index = ends.tokens.masked_fill(~ends.there, length)
    return marks.scatter(1, index, True)[:, :length]


def slots_at_ends(blocks: Blocks, marks: Tensor) -> Tensor:
    """Tell which slots, (B, G + J - 1, S), hold a token of the ends, by `at_ends`."""
    return marks.gather(1, blocks.members.flatten(1)).view_as(blocks.filled) & blocks.filled


def _logits(
    query: Tensor, key: Tensor, added: Tensor | None, seen: Tensor | None, scale: float
) -> Tensor:
    """Logits of all queries with all keys, (B, H, queries, keys), in float32.

    Args:
        query, key: (B, H, any, D).
        added: What additional columns add to q . k, (B, H, queries, keys); None for none.
        seen: (B, keys), False at keys that do not count; None means all do.
        scale: Factor on the logits.
    """
    with torch.autocast(query.device.type, enabled=False):
        logits = query.float() @ key.float().transpose(2, 3)
        if added is not None:
            logits = logits + added
        logits = scale * logits
        if seen is not None:  # no -inf: a text may be nothing but padding
            logits = logits.masked_fill(~seen[:, None, None], torch.finfo(logits.dtype).min)
        return logits


def _mix(logits: Tensor, value: Tensor) -> Tensor:
    """Values (B, H, queries, D) by logits, in float32."""
    with torch.autocast(value.device.type, enabled=False):
        return logits.softmax(-1) @ value.float()
