"""Attention with additional columns, in narrow blocks that all heads share, on CPU.

Letters as in reference.py. "rows" are B * N tokens.

The columns become a bias, computed once for all heads: wider queries and keys, as
`_chunk_attention_cpu` has them, are copied and multiplied in each. The window of a block is a view
of the gathered rows: windows of neighbouring blocks overlap in memory, and none is copied.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from clusterformer.kernels._chunk_attention_cpu import rows_of_more
from clusterformer.kernels.autograd import register_backward
from clusterformer.kernels.blocks import Blocks
from clusterformer.kernels.merging import gradients_of_more, merge
from clusterformer.kernels.rows import add_rows, take_rows, zero_rows

SCORES = 2**19
"""Maximum number of logits of all heads in one piece, 2 MiB; a block with more is not narrow."""


def is_narrow(blocks: Blocks, batch: int, heads: int) -> bool:
    """Tell whether the blocks are narrow, and the same for all heads of `batch` sequences."""
    width, reach = blocks.members.shape[-1], blocks.visible.shape[-1]
    return blocks.members.shape[0] == batch and heads * width * width * reach <= SCORES


def chunk_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Blocks,
    *,
    mask: Tensor,
    scale: float,
    extra: tuple[Tensor, Tensor],
    more: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Apply softmax attention of each block over the blocks that it sees; see `reference`.

    Computes in float32 in every dtype. Saves q, k, v and the values, as full attention does.

    Args:
        extra: Additional columns of q and of k, (B, N, A) each, at least one.
    """
    batch, heads, length, _ = q.shape
    rows = (x.transpose(1, 2).reshape(-1, heads, x.shape[-1]) for x in (q, k, v))
    columns = (x.float().flatten(0, 1) for x in extra)
    start = torch.arange(batch, device=q.device) * length
    slot_rows = blocks.members + start[:, None, None]
    filled = blocks.own_filled
    with torch.autocast("cpu", enabled=False):
        further = rows_of_more(more)
        out, *_ = _forward(
            *rows, *columns, *further, slot_rows, filled, mask, blocks.look_back, scale
        )
    return out.view(batch, length, heads, -1).transpose(1, 2)


@torch.library.custom_op("clusterformer::narrow_blocks", mutates_args=())
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
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute values (rows, H, D); with further keys log-sum-exps of the blocks and of all keys.

    Args:
        q, k, v: (rows, H, D).
        q_extra, k_extra: (rows, A).
        more, more_masses: (rows, H, D) and (rows, H) of further keys; empty for none.
        slot_rows: Row in each slot, (B, G + J - 1, S).
        filled: (B, G, S).
        mask: (B, G, S or 1, J * S).
        look_back: Number of blocks seen before the own one.
        scale: Factor on the logits.
    """
    values, masses = zero_rows(q.shape), zero_rows(more_masses.shape)
    full, all_seen = bool(filled.all()), bool(mask.all())
    for piece, own, seen in _pieces(slot_rows, filled.shape[1], look_back, q.shape[1]):
        query, key, value = take_rows(q, own), take_rows(k, seen), take_rows(v, seen)
        bias = _bias(q_extra, k_extra, own, seen, None if all_seen else mask[piece], scale)
        logits = _products(query, key, own, bias, scale)
        p = logits.softmax(-1)  # (H, G, S, J * S)
        if more.numel():  # the largest weight is exp(the largest logit - log-sum-exp)
            mass = (logits.amax(-1) - p.amax(-1).log()).permute(1, 2, 0)
            add_rows(masses, own, mass * filled[piece][..., None])
        part, windows = torch.empty_like(query), _windows(value, own)
        for head in range(q.shape[1]):
            part[:, :, head] = torch.bmm(p[head], windows[:, head])
        if not full:
            part *= filled[piece][..., None, None]
        add_rows(values, own, part)
    values, total = merge(values, masses, more, more_masses)
    return values.to(q.dtype), masses, total.clone()  # an operation returns no tensor twice


@torch.library.custom_op("clusterformer::narrow_blocks_backward", mutates_args=())
@torch.autocast("cpu", enabled=False)  # where the backward pass too runs under autocast
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
    masses: Tensor,
    total: Tensor,
    look_back: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute gradients of q, k, v, the additional columns and what further keys give.

    dS = P * (dO V^T - delta), delta = dO . O. P is computed again: PyTorch's softmax takes the time
    of its exp, which is slow at the -inf of a mask.
    """
    dq, dk, dv, dq_extra, dk_extra = (zero_rows(x.shape) for x in (q, k, v, q_extra, k_extra))
    delta = torch.einsum("rhd,rhd->rh", grad.float(), out.float())
    all_seen, heads, share = bool(mask.all()), q.shape[1], (masses - total).exp()
    for piece, own, seen in _pieces(slot_rows, filled.shape[1], look_back, heads):
        query, key, value = take_rows(q, own), take_rows(k, seen), take_rows(v, seen)
        held = filled[piece][..., None]  # what an empty slot gathers has no gradient
        gradient, dots = take_rows(grad, own) * held[..., None], take_rows(delta, own) * held
        bias = _bias(q_extra, k_extra, own, seen, None if all_seen else mask[piece], scale)
        p = _products(query, key, own, bias, scale).softmax(-1)
        if more.numel():
            p *= take_rows(share, own).permute(2, 0, 1)[..., None]
        ds = _products(gradient, value, own).sub_(dots.permute(2, 0, 1)[..., None]).mul_(p)
        part_dq = query.new_empty(heads, *query.shape[:2], query.shape[3])
        part_dk, part_dv = (
            query.new_empty(*p.shape[:2], p.shape[3], x.shape[3]) for x in (key, value)
        )
        windows = _windows(key, own)
        for head in range(heads):
            torch.bmm(ds[head], windows[:, head], out=part_dq[head])
            torch.bmm(ds[head].transpose(1, 2), query[:, :, head], out=part_dk[head])
            torch.bmm(p[head].transpose(1, 2), gradient[:, :, head], out=part_dv[head])
        part_dq = part_dq.permute(1, 2, 0, 3) * scale
        part_dk, part_dv = _fold(part_dk, seen, scale), _fold(part_dv, seen)
        add_rows(dq, own, part_dq)
        add_rows(dk, seen, part_dk)
        add_rows(dv, seen, part_dv)
        shared = ds.sum(0).mul_(scale)  # all heads add the same bias
        columns = take_rows(q_extra, own), _window(take_rows(k_extra, seen), own)
        add_rows(dq_extra, own, torch.bmm(shared, columns[1]))
        part = torch.bmm(shared.transpose(1, 2), columns[0])
        add_rows(dk_extra, seen, _fold(part[None], seen))
    further = gradients_of_more(grad, out, total, more, more_masses)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dq_extra, dk_extra, *further


@_forward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, q_extra: Tensor, k_extra: Tensor, more: Tensor,
    more_masses: Tensor, *_: object,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    empty = torch.empty_like
    return q.new_empty(q.shape), empty(more_masses), empty(more_masses)


register_backward(_forward, _backward, gradients=7)


def _pieces(
    slot_rows: Tensor, groups: int, look_back: int, heads: int
) -> Iterator[tuple[tuple[int, slice], Tensor, Tensor]]:
    """Cut the work into some blocks of one sequence each.

    Yields the sequence and its blocks, the rows of their tokens (G, S), and the rows of all tokens
    that they see (G + J - 1, S).
    """
    batch, entries, width = slot_rows.shape
    reach = entries - groups + 1
    blocks = max(1, SCORES // (heads * reach * width * width))
    for sequence in range(batch):
        rows = slot_rows[sequence]
        for first in range(0, groups, blocks):
            last = min(first + blocks, groups)
            yield (
                (sequence, slice(first, last)),
                rows[look_back + first : look_back + last],
                rows[first : last + reach - 1],
            )


def _window(entries: Tensor, own: Tensor) -> Tensor:
    """View rows (G + J - 1, S, F) as the windows of G blocks, (G, J * S, F)."""
    groups, width = own.shape
    seen = (len(entries) - groups + 1) * width
    stride = entries.stride()
    return entries.as_strided((groups, seen, entries.shape[2]), stride)


def _windows(entries: Tensor, own: Tensor) -> Tensor:
    """View rows (G + J - 1, S, H, D) as the windows of G blocks, (G, H, J * S, D)."""
    heads, width = entries.shape[2:]
    return _window(entries.flatten(2), own).unflatten(2, (heads, width)).transpose(1, 2)


def _products(
    rows: Tensor, entries: Tensor, own: Tensor, bias: Tensor | None = None, scale: float = 1.0
) -> Tensor:
    """Products of rows (G, S, H, D) with the windows of their blocks, (H, G, S, J * S)."""
    windows = _windows(entries, own).transpose(2, 3)
    products = rows.new_empty(rows.shape[2], *rows.shape[:2], windows.shape[-1])
    for head, out in enumerate(products):
        if bias is None:
            torch.bmm(rows[:, :, head], windows[:, head], out=out)
        else:
            torch.baddbmm(bias, rows[:, :, head], windows[:, head], alpha=scale, out=out)
    return products


def _fold(windows: Tensor, seen: Tensor, factor: float = 1.0) -> Tensor:
    """Sum windows (H, G, J * S, F) into the entries that they view, (G + J - 1, S, H, F)."""
    groups, width = windows.shape[1], seen.shape[1]
    total = windows.new_zeros(*seen.shape, windows.shape[0], windows.shape[3])
    for entry, part in enumerate(windows.split(width, 2)):
        total[entry : entry + groups].add_(part.permute(1, 2, 0, 3), alpha=factor)
    return total


def _bias(
    q_extra: Tensor, k_extra: Tensor, own: Tensor, seen: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """Bias on the logits of all heads, (G, S, J * S)."""
    columns = _window(take_rows(k_extra, seen), own)
    bias = torch.bmm(take_rows(q_extra, own), columns.transpose(1, 2)).mul_(scale)
    return bias if mask is None else bias.masked_fill_(~mask, float("-inf"))
