"""`reference.chunk_attention` on CPU, piece by piece: blocks stay in the cache.

Letters as in reference.py. "rows" are B * N tokens, or B * N * H where every head has its own
blocks.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from clusterformer.kernels.autograd import register_backward
from clusterformer.kernels.blocks import Blocks, windows
from clusterformer.kernels.merging import gradients_of_more, merge
from clusterformer.kernels.reference import LATER_ROUNDS, widen
from clusterformer.kernels.rows import add_rows, take_rows, zero_rows

PIECE = 2**19
"""Maximum number of elements in the key windows of one piece, 2 MiB. Less takes less memory, and
more time."""

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def chunk_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Blocks,
    *,
    mask: Tensor,
    scale: float,
    self_bias: float,
    extra: tuple[Tensor, Tensor],
    more: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Apply softmax attention of each block over the blocks that it sees; see `reference`.

    Attention computes in float32 in every dtype: PyTorch's bfloat16 attention is slower backward
    on CPU. Saved tensors have the dtype of the inputs.

    Traffic: reads q, k, v and writes the values once per round; gathered rows stay in the cache.
    4 B G J S^2 H (D + A) operations forward, 10 backward. Saves q, k, v and the values, as full
    attention does, for any number of rounds.
    """
    batch, heads, length, _ = q.shape
    split = heads if blocks.members.shape[0] != batch else 1  # heads with blocks of their own
    rows = (x.transpose(1, 2).reshape(-1, heads // split, x.shape[-1]) for x in (q, k, v))
    columns = (x[:, :, None].expand(-1, -1, split, -1).float().flatten(0, 2) for x in extra)
    start = torch.arange(batch * split, device=q.device)
    start = start.div(split, rounding_mode="floor") * (length * split) + start % split
    members, filled, mask = (
        x.unflatten(0, (-1, batch * split)) for x in (blocks.members, blocks.own_filled, mask)
    )
    slot_rows = members * split + start[:, None, None]
    further = rows_of_more(more)
    out, _ = _forward(
        *rows, *columns, *further, slot_rows, filled, mask, blocks.look_back, scale, self_bias
    )
    return out.view(batch, length, heads, -1).transpose(1, 2)


@torch.library.custom_op("clusterformer::chunk_attention", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_extra: Tensor,
    k_extra: Tensor,
    more: Tensor,
    more_masses: Tensor,
    slot_rows: Tensor,
    filled: Tensor,
    mask: Tensor,
    look_back: int,
    scale: float,
    self_bias: float,
) -> tuple[Tensor, Tensor]:
    """Compute values (rows, H, D) and log-sum-exps (rows, H).

    Args:
        q, k, v: (rows, H, D).
        q_extra, k_extra: (rows, A).
        more, more_masses: (rows, H, D) and (rows, H) of further keys; empty for none.
        slot_rows: Row in each slot, (R, B, G + J - 1, S).
        filled: (R, B, G, S).
        mask: (R, B, G, S or 1, J * S).
        look_back: Number of blocks seen before the own one.
        scale: Factor on the logits.
        self_bias: Bias on the logit of a token with itself.
    """
    out = logsumexp = torch.empty(0)
    for hash_round in range(slot_rows.shape[0]):
        bias_now = self_bias * LATER_ROUNDS if hash_round else self_bias
        values, sums = zero_rows(q.shape), zero_rows(q.shape[:2])
        for piece, own, seen in _pieces(q, slot_rows[hash_round], filled.shape[2], look_back):
            arguments = _gather(q, k, v, q_extra, k_extra, own, seen)
            bias = _bias(mask[hash_round][piece], own.shape[-1], look_back, bias_now)
            part, part_sums = _flash(*arguments, 0.0, False, attn_mask=bias, scale=scale)
            held = filled[hash_round][piece].flatten()[:, None]
            part = part[..., : q.shape[-1]].transpose(1, 2).flatten(0, 1)
            add_rows(values, own, part * held[..., None])
            add_rows(sums, own, part_sums.transpose(1, 2).flatten(0, 1) * held)
        out, logsumexp = merge(values, sums, out, logsumexp)
    out, logsumexp = merge(out, logsumexp, more, more_masses)
    return out.to(q.dtype), logsumexp


@torch.library.custom_op("clusterformer::chunk_attention_backward", mutates_args=())
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_extra: Tensor,
    k_extra: Tensor,
    more: Tensor,
    more_masses: Tensor,
    slot_rows: Tensor,
    filled: Tensor,
    mask: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    look_back: int,
    scale: float,
    self_bias: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute gradients of q, k, v, the additional columns and what further keys give.

    With the values and log-sum-exps of all rounds, each round's part of the softmax over their
    union has the gradient of a separate softmax.
    """
    width = q.shape[-1]
    dq, dk, dv, dq_extra, dk_extra = (zero_rows(x.shape) for x in (q, k, v, q_extra, k_extra))
    for hash_round in range(slot_rows.shape[0]):
        bias_now = self_bias * LATER_ROUNDS if hash_round else self_bias
        for piece, own, seen in _pieces(q, slot_rows[hash_round], filled.shape[2], look_back):
            arguments = _gather(q, k, v, q_extra, k_extra, own, seen)
            held = filled[hash_round][piece][..., None]
            sums = take_rows(logsumexp, own).masked_fill_(~held, float("inf"))
            part_dq, part_dk, part_dv = _flash_backward(
                widen(take_rows(grad, own) * held[..., None], None, q_extra),
                *arguments,
                widen(take_rows(out, own), None, q_extra),
                sums.transpose(2, 3).flatten(0, 1),
                0.0,
                False,
                attn_mask=_bias(mask[hash_round][piece], own.shape[-1], look_back, bias_now),
                scale=scale,
            )
            part_dq = part_dq.transpose(1, 2).unflatten(0, own.shape[:2])
            part_dk, part_dv = (_fold(x, own.shape[:2], seen.shape) for x in (part_dk, part_dv))
            add_rows(dq, own, part_dq[..., :width])
            add_rows(dq_extra, own, part_dq[..., width:].sum(3))
            add_rows(dk, seen, part_dk[..., :width])
            add_rows(dk_extra, seen, part_dk[..., width:].sum(3))
            add_rows(dv, seen, part_dv[..., :width])
    further = gradients_of_more(grad, out, logsumexp, more, more_masses)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dq_extra, dk_extra, *further


@_forward.register_fake
def _(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=torch.float32)


register_backward(_forward, _backward, gradients=7)


def rows_of_more(more: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """Values and masses of further keys, (B, H, N, ...), as rows; empty tensors for none."""
    if more is None:
        return zero_rows(torch.Size([0])), zero_rows(torch.Size([0]))
    values, masses = (x.float().transpose(1, 2).flatten(0, 1) for x in more)
    return values, masses


def _pieces(
    q: Tensor, slot_rows: Tensor, groups: int, look_back: int
) -> Iterator[tuple[tuple[slice, slice], Tensor, Tensor]]:
    """Cut the work into pieces: some whole sequences each, or some blocks of one.

    Yields the blocks as slices, the rows of their tokens (B, G, S), and the rows of all tokens
    that they see (B, G + J - 1, S).
    """
    batch, entries, width = slot_rows.shape
    reach = entries - groups + 1
    blocks = max(1, PIECE // max(1, reach * width * q[0].numel()))
    rows, blocks = max(1, blocks // max(1, groups)), min(blocks, groups)
    for row in range(0, batch, rows):
        sequences = slice(row, min(row + rows, batch))
        for first in range(0, groups, max(1, blocks)):
            last = min(first + blocks, groups)
            yield (
                (sequences, slice(first, last)),
                slot_rows[sequences, look_back + first : look_back + last],
                windows(slot_rows[sequences, first : last + reach - 1], reach),
            )


def _gather(
    q: Tensor, k: Tensor, v: Tensor, q_extra: Tensor, k_extra: Tensor, own: Tensor, seen: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of a piece with their columns, (B * G, H, S or J * S, D + A)."""
    reach = seen.shape[1] - own.shape[1] + 1
    query = widen(take_rows(q, own), take_rows(q_extra, own))
    key, value, columns = (windows(take_rows(x, seen), reach) for x in (k, v, k_extra))
    return query, widen(key, columns), widen(value, None, columns)


def _fold(part: Tensor, blocks: torch.Size, entries: torch.Size) -> Tensor:
    """Sum windows (B * G, H, J * S, D) into the entries seen, (B, G + J - 1, S, H, D)."""
    reach = entries[1] - blocks[1] + 1
    copies = part.transpose(1, 2).unflatten(0, blocks).unflatten(2, (reach, -1))
    total = part.new_zeros(*entries, *copies.shape[4:])
    for entry in range(reach):
        total[:, entry : entry + blocks[1]] += copies[:, :, entry]
    return total


def _bias(mask: Tensor, width: int, look_back: int, self_bias: float) -> Tensor:
    bias = zero_rows(mask.shape).masked_fill_(~mask, float("-inf")).flatten(0, 1)
    if self_bias:
        bias = bias.expand(-1, width, -1).contiguous()
        bias.diagonal(look_back * width, 1, 2).add_(self_bias)
    return bias[:, None]
