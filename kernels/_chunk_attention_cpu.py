"""`reference.chunk_attention` on CPU, piece by piece: blocks live in the cache, not in memory.

Letters as in reference.py; T = B * N.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from clusterformer.kernels.reference import Blocks, widen, window_mask, windows

PIECE = 2**19
"""Most numbers in the keys' windows of one piece, 2 MiB; less takes less memory, and more time."""

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def chunk_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Blocks,
    *,
    scale: float,
    causal: bool,
    within: int | None,
    extra: tuple[Tensor, Tensor],
) -> Tensor:
    """Softmax attention of each block over the blocks that it sees; see `reference`.

    In float32 whatever comes in: PyTorch's bfloat16 attention is slower backward on CPU.

    Traffic: reads q, k, v and writes the values once; what is gathered stays in the cache.
    4 B G R S^2 H (D + P) operations forward, 10 backward. Keeps q, k, v and the values, as full
    attention does.
    """
    rows = (x.transpose(1, 2).float() for x in (q, k, v))
    columns = (x.float() for x in extra)
    mask = window_mask(blocks, causal, within)
    index = blocks.members, blocks.own_filled, mask
    out, _ = _forward(*rows, *columns, *index, blocks.back, scale)
    return out.to(q.dtype).transpose(1, 2)


@torch.library.custom_op("clusterformer::chunk_attention", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_extra: Tensor,
    k_extra: Tensor,
    members: Tensor,
    filled: Tensor,
    mask: Tensor,
    back: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Values (B, N, H, D) and log-sum-exp (B, G, H, S); q, k, v are (B, N, H, D)."""
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    logsumexp = q.new_empty(*filled.shape[:2], q.shape[2], filled.shape[2])
    for piece, own, places in _pieces(q, members, filled, back):
        arguments = _gather(q, k, v, q_extra, k_extra, own, places)
        values, sums = _flash(*arguments, 0.0, False, attn_mask=_bias(mask[piece]), scale=scale)
        values = values[..., : q.shape[-1]].transpose(1, 2).flatten(0, 1)
        values = values * filled[piece].flatten()[:, None, None]
        _add(out, own, values)
        logsumexp[piece] = sums.view_as(logsumexp[piece])
    return out, logsumexp


@torch.library.custom_op("clusterformer::chunk_attention_backward", mutates_args=())
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_extra: Tensor,
    k_extra: Tensor,
    members: Tensor,
    filled: Tensor,
    mask: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    back: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and the extra columns."""
    width = q.shape[-1]
    d_q, d_k, d_v, d_q_extra, d_k_extra = (
        torch.zeros_like(x, memory_format=torch.contiguous_format)
        for x in (q, k, v, q_extra, k_extra)
    )
    for piece, own, places in _pieces(q, members, filled, back):
        arguments = _gather(q, k, v, q_extra, k_extra, own, places)
        given = _take(grad, own) * filled[piece][..., None, None]
        of_q, of_k, of_v = _flash_backward(
            widen(given, None, q_extra), *arguments, widen(_take(out, own), None, q_extra),
            logsumexp[piece].flatten(0, 1), 0.0, False, attn_mask=_bias(mask[piece]), scale=scale,
        )  # fmt: skip
        of_q = of_q.transpose(1, 2).unflatten(0, own.shape[:2])
        of_k, of_v = (_fold(x, own.shape[:2], places.shape) for x in (of_k, of_v))
        _add(d_q, own, of_q[..., :width])
        _add(d_q_extra, own, of_q[..., width:].sum(3))
        _add(d_k, places, of_k[..., :width])
        _add(d_k_extra, places, of_k[..., width:].sum(3))
        _add(d_v, places, of_v[..., :width])
    return d_q, d_k, d_v, d_q_extra, d_k_extra


@_forward.register_fake
def _(q: Tensor, *tensors: Tensor, back: int = 0, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    filled = tensors[5]
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    return out, q.new_empty(*filled.shape[:2], q.shape[2], filled.shape[2])


@_backward.register_fake
def _(grad: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    contiguous = torch.contiguous_format
    return tuple(torch.empty_like(x, memory_format=contiguous) for x in tensors[:5])


def _setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.back, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx, grad: Tensor, _: Tensor):  # type: ignore[no-untyped-def]
    found = _backward(grad, *ctx.saved_tensors, ctx.back, ctx.scale)
    return *found, None, None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_setup)


def _pieces(
    q: Tensor, members: Tensor, filled: Tensor, back: int
) -> Iterator[tuple[tuple[slice, slice], Tensor, Tensor]]:
    """Cut the work: some whole sequences each, or some blocks of one.

    Yields the blocks as slices, and the rows, 0..T-1, of their tokens (B, G, S) and of all tokens
    in their sight (B, G + R - 1, S).
    """
    batch, length, heads, head_width = q.shape
    groups, width = filled.shape[1:]
    reach = members.shape[1] - groups + 1
    blocks = max(1, PIECE // max(1, reach * width * heads * head_width))
    rows, blocks = max(1, blocks // max(1, groups)), min(blocks, groups)
    for row in range(0, batch, rows):
        some = slice(row, min(row + rows, batch))
        start = torch.arange(some.start, some.stop)[:, None, None] * length
        tokens = members[some] + start
        for first in range(0, groups, max(1, blocks)):
            last = min(first + blocks, groups)
            own = tokens[:, back + first : back + last]
            yield (
                (some, slice(first, last)),
                own,
                windows(tokens[:, first : last + reach - 1], reach),
            )


def _gather(
    q: Tensor, k: Tensor, v: Tensor, q_extra: Tensor, k_extra: Tensor, own: Tensor, places: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of a piece with their columns, (B * G, H, S or R * S, D + P)."""
    reach = places.shape[1] - own.shape[1] + 1
    query = widen(_take(q, own), _take(q_extra, own))
    key, value, columns = (windows(_take(x, places), reach) for x in (k, v, k_extra))
    return query, widen(key, columns), widen(value, None, columns)


def _fold(part: Tensor, blocks: torch.Size, places: torch.Size) -> Tensor:
    """Sum windows (B * G, H, R * S, D) to the places they are of, (B, G + R - 1, S, H, D)."""
    reach = places[1] - blocks[1] + 1
    copies = part.transpose(1, 2).unflatten(0, blocks).unflatten(2, (reach, -1))
    total = part.new_zeros(*places, *copies.shape[4:])
    for entry in range(reach):
        total[:, entry : entry + blocks[1]] += copies[:, :, entry]
    return total


def _take(x: Tensor, index: Tensor) -> Tensor:
    return x.flatten(0, 1).index_select(0, index.flatten()).unflatten(0, index.shape)


def _add(total: Tensor, index: Tensor, part: Tensor) -> None:
    """Add to rows; two dimensions and contiguous, as PyTorch is fast for."""
    total.flatten(0, 1).flatten(1).index_add_(0, index.flatten(), part.reshape(index.numel(), -1))


def _bias(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill_(~mask, float("-inf")).flatten(0, 1)[:, None]
