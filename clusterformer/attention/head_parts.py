"""Attention of heads in parts, each with blocks of its own, and to the ends of a text in all heads.

B batch   H heads   N tokens   D head width   A additional columns   L tokens at the ends
Z rows: B times the clusterings that share the heads of a part
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clusterformer.attention.text_ends import (
    TextEnds,
    at_ends,
    attend_from_ends,
    attend_to_ends,
    put_at_ends,
    repeat_ends,
    slots_at_ends,
)
from clusterformer.kernels.blocks import Blocks
from clusterformer.kernels.chunk_attention import chunk_attention
from clusterformer.kernels.dense_attention import dense_attention, is_dense
from clusterformer.kernels.rows import pick_tokens, repeat_rows


class Part(NamedTuple):
    """Heads next to each other that attend in the same blocks.

    Attributes:
        heads: Number of heads.
        blocks: Index structure of each sequence (B, ...), or of each of its clusterings (Z, ...),
            which share the heads equally.
        extra: Additional columns of q and of k, (Z, N, A) each; None for none.
    """

    heads: int
    blocks: Blocks
    extra: tuple[Tensor, Tensor] | None = None

    def clusterings(self, batch: int) -> int:
        """Number of clusterings of each of `batch` sequences."""
        return self.blocks.slot.shape[0] // batch


def fold_heads(x: Tensor, clusterings: int) -> Tensor:
    """Give each clustering its share of the heads: (B, H, ...) to (Z, H * B / Z, ...)."""
    return x if clusterings == 1 else x.unflatten(1, (clusterings, -1)).flatten(0, 1)


def unfold_heads(x: Tensor, clusterings: int) -> Tensor:
    """Undo `fold_heads`."""
    return x if clusterings == 1 else x.unflatten(0, (-1, clusterings)).flatten(1, 2)


def attend_in_parts(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    parts: Sequence[Part],
    ends: TextEnds | None,
    key_mask: Tensor | None,
    *,
    scale: float,
    causal: bool,
    prefix: int,
) -> Tensor:
    """Apply softmax attention over the blocks that a token sees, and the ends of its text.

    Tokens at the ends attend to all tokens of their text. A key counts once.

    Args:
        q, k, v: (B, H, N, D). The logits are scale * q . k.
        parts: Blocks of the heads, in their order.
        ends: Tokens at the ends, where nothing is causal; None for none.
        key_mask: (B, N), True at real tokens; None means all real.
        scale: Factor on the logits.
        causal: A token attends to itself and tokens before it only.
        prefix: Number of first tokens that attend to all before them, where strictly causal.

    Returns:
        (B, H, N, D) in the dtype of q; 0 at padding.

    Cost: that of `chunk_attention`, and O(N L D) for the ends.
    """
    batch, _, length, _ = q.shape
    cut = list(zip(parts, *(_cut(x, parts) for x in (q, k, v)), strict=True))
    if ends is None:
        mixed = [
            chunk_attention(
                q, k, v, part.blocks, scale=scale, causal=causal, extra=part.extra, prefix=prefix
            )
            for part, q, k, v in cut
        ]
        return _join(batch, mixed)
    marked = at_ends(ends, length)
    marks = [repeat_rows(marked, part.clusterings(batch)) for part in parts]
    if all(is_dense(part.blocks, q.device, shared=True) for part in parts):
        mixed = [
            dense_attention(q, k, v, part.blocks, scale=scale, extra=part.extra, global_mask=mark)
            for (part, q, k, v), mark in zip(cut, marks, strict=True)
        ]
        return _join(batch, mixed)
    added_to, added_from = _column_logits(parts, ends, batch)
    values, masses = attend_to_ends(q, k, v, ends, key_mask, added_to, scale)
    seen = zip(_cut(values, parts), _cut(masses, parts), strict=True)
    mixed = [
        chunk_attention(
            q, k, v, _without(part.blocks, mark), scale=scale, extra=part.extra, more=more
        )
        for (part, q, k, v), mark, more in zip(cut, marks, seen, strict=True)
    ]
    found = attend_from_ends(q, k, v, ends, key_mask, added_from, scale)
    return put_at_ends(_join(batch, mixed), ends, found)


def _cut(x: Tensor, parts: Sequence[Part]) -> list[Tensor]:
    """Cut (B, H, ...) into the heads of each part, folded."""
    each = x.split([part.heads for part in parts], 1)
    return [
        fold_heads(heads, part.clusterings(x.shape[0]))
        for part, heads in zip(parts, each, strict=True)
    ]


def _join(batch: int, parts: list[Tensor]) -> Tensor:
    """Join the folded heads of all parts, (B, H, N, D)."""
    whole = [unfold_heads(x, x.shape[0] // batch) for x in parts]
    return whole[0] if len(whole) == 1 else torch.cat(whole, 1)


def _without(blocks: Blocks, marks: Tensor) -> Blocks:
    """Leave the tokens at the ends out of their slots."""
    return blocks._replace(filled=blocks.filled ^ slots_at_ends(blocks, marks), padded=True)


def _column_logits(
    parts: Sequence[Part], ends: TextEnds, batch: int
) -> tuple[Tensor | None, Tensor | None]:
    """Compute what additional columns add to q . k of all heads, in float32; None without columns.

    Returns:
        (B, H, N, L), where the ends are the keys, and (B, H, L, N), where they are the queries.
    """
    to_ends, from_ends = zip(*(_logits_of(part, ends, batch) for part in parts), strict=True)
    return _fill(to_ends, parts), _fill(from_ends, parts)


def _logits_of(part: Part, ends: TextEnds, batch: int) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Compute what `_column_logits` returns, for the heads of one part."""
    if part.extra is None:
        return None, None
    ask, offer = (x.float() for x in part.extra)
    of_part = repeat_ends(ends, part.clusterings(batch))
    with torch.autocast(ask.device.type, enabled=False):
        to_ends = ask @ pick_tokens(offer, of_part.tokens).transpose(1, 2)
        from_ends = pick_tokens(ask, of_part.tokens) @ offer.transpose(1, 2)
    return _of_heads(to_ends, part, batch), _of_heads(from_ends, part, batch)


def _of_heads(logits: Tensor, part: Part, batch: int) -> Tensor:
    """Give logits (Z, queries, keys) of each clustering to its heads, (B, H, queries, keys)."""
    count = part.clusterings(batch)
    each = logits.unflatten(0, (batch, count))[:, :, None]
    return each.expand(-1, -1, part.heads // count, -1, -1).flatten(1, 2)


def _fill(logits: Sequence[Tensor | None], parts: Sequence[Part]) -> Tensor | None:
    """Join logits of all parts; those of a part without columns are 0. None if all are."""
    some = next((x for x in logits if x is not None), None)
    if some is None:
        return None
    whole = [
        some.new_zeros(some.shape[0], part.heads, *some.shape[2:]) if x is None else x
        for x, part in zip(logits, parts, strict=True)
    ]
    return whole[0] if len(whole) == 1 else torch.cat(whole, 1)
