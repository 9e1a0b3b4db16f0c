"""`reference.chunk_attention` on CPU, piece by piece: blocks live in the cache, not in memory.

Letters as in reference.py; T rows: B * N tokens, or B * N * H where every head has its own blocks.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.kernels.blocks import Blocks, windows
from clusterformer.kernels.reference import LATER, widen

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
    mask: Tensor,
    scale: float,
    itself: float,
    extra: tuple[Tensor, Tensor],
) -> Tensor:
    """Softmax attention of each block over the blocks that it sees; see `reference`.

    Each piece is attended to in float32 whatever comes in: PyTorch's bfloat16 attention is slower
    backward on CPU. What is kept has the dtype that came in.

    Traffic: reads q, k, v and writes the values once a round; what is gathered stays in the cache.
    4 B G R S^2 H (D + P) operations forward, 10 backward. Keeps q, k, v and the values, as full
    attention does, however many rounds.
    """
    batch, heads, length, _ = q.shape
    split = heads if blocks.members.shape[0] != batch else 1  # heads with blocks of their own
    rows = (x.transpose(1, 2).reshape(-1, heads // split, x.shape[-1]) for x in (q, k, v))
    columns = (x[:, :, None].expand(-1, -1, split, -1).float().flatten(0, 2) for x in extra)
    start = torch.arange(batch * split, device=q.device)
    start = start.div(split, rounding_mode="floor") * (length * split) + start % split
    places, filled, mask = (
        x.unflatten(0, (-1, batch * split)) for x in (blocks.members, blocks.own_filled, mask)
    )
    places = places * split + start[:, None, None]
    out, _ = _forward(*rows, *columns, places, filled, mask, blocks.back, scale, itself)
    return out.view(batch, length, heads, -1).transpose(1, 2)


def whole_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor,
    *,
    scale: float,
    causal: bool,
    itself: float,
    extra: tuple[Tensor, Tensor],
) -> Tensor:
    """The same where every token sees all of its sequence: nothing is sorted or gathered.

    Args:
        q, k, v: (B, H, N, D).
        real: (B, N), False at padding.
        scale, causal, itself, extra: As in the public operation.
    """
    heads, length, width = q.shape[1], q.shape[2], v.shape[-1]
    more = extra[0].shape[-1]
    columns = (x.float()[:, None].expand(-1, heads, -1, -1) for x in extra)
    with torch.autocast("cpu", enabled=False):
        query, key = (torch.cat([x.float(), y], -1) for x, y in zip((q, k), columns, strict=True))
        mask = (real | ~real.any(1, keepdim=True))[:, None]  # a row without a key gives NaN
        if causal:
            mask = mask & torch.ones(length, length, dtype=torch.bool).tril()
            mask = mask | ~real[..., None]
        if itself:
            mask = _bias(mask.expand(-1, length, -1)[:, None], length, 0, itself)
        else:
            mask = mask[:, None]
        # fused attention wants values as wide as keys
        out = F.scaled_dot_product_attention(
            query, key, F.pad(v.float(), (0, more)), attn_mask=mask, scale=scale
        )
    return out[..., :width].masked_fill(~real[:, None, :, None], 0.0).to(q.dtype)


@torch.library.custom_op("clusterformer::chunk_attention", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_extra: Tensor,
    k_extra: Tensor,
    places: Tensor,
    filled: Tensor,
    mask: Tensor,
    back: int,
    scale: float,
    itself: float,
) -> tuple[Tensor, Tensor]:
    """Values (T, H, D) and log-sum-exp (T, H).

    Args:
        q, k, v: (T, H, D).
        q_extra, k_extra: (T, P).
        places: Row in each slot, (rounds, B, L, S).
        filled: (rounds, B, G, S).
        mask: (rounds, B, G, S or 1, R * S).
        back: Blocks seen before the own one.
        scale: Factor on the logits.
        itself: Added to the logit of a token with itself.
    """
    out = logsumexp = torch.empty(0)
    for turn in range(places.shape[0]):
        alone = itself * LATER if turn else itself
        values, sums = _zeros(q.shape), _zeros(q.shape[:2])
        for piece, own, seen in _pieces(q, places[turn], filled.shape[2], back):
            arguments = _gather(q, k, v, q_extra, k_extra, own, seen)
            bias = _bias(mask[turn][piece], own.shape[-1], back, alone)
            part, sums_part = _flash(*arguments, 0.0, False, attn_mask=bias, scale=scale)
            full = filled[turn][piece].flatten()[:, None]
            part = part[..., : q.shape[-1]].transpose(1, 2).flatten(0, 1)
            _add(values, own, part * full[..., None])
            _add(sums, own, sums_part.transpose(1, 2).flatten(0, 1) * full)
        if turn:
            total = torch.logaddexp(logsumexp, sums)
            values.mul_((sums - total).exp_()[..., None])
            values.addcmul_(out, (logsumexp - total).exp_()[..., None])
            sums = total
        out, logsumexp = values, sums
    return out.to(q.dtype), logsumexp


@torch.library.custom_op("clusterformer::chunk_attention_backward", mutates_args=())
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_extra: Tensor,
    k_extra: Tensor,
    places: Tensor,
    filled: Tensor,
    mask: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    back: int,
    scale: float,
    itself: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and the extra columns.

    With the values and log-sum-exps of all rounds together, each round's part of the softmax over
    their union has the gradient that a softmax of its own would have.
    """
    width = q.shape[-1]
    d_q, d_k, d_v, d_q_extra, d_k_extra = (_zeros(x.shape) for x in (q, k, v, q_extra, k_extra))
    for turn in range(places.shape[0]):
        alone = itself * LATER if turn else itself
        for piece, own, seen in _pieces(q, places[turn], filled.shape[2], back):
            arguments = _gather(q, k, v, q_extra, k_extra, own, seen)
            full = filled[turn][piece][..., None]
            sums = _take(logsumexp, own).masked_fill_(~full, float("inf"))
            of_q, of_k, of_v = _flash_backward(
                widen(_take(grad, own) * full[..., None], None, q_extra),
                *arguments,
                widen(_take(out, own), None, q_extra),
                sums.transpose(2, 3).flatten(0, 1),
                0.0,
                False,
                attn_mask=_bias(mask[turn][piece], own.shape[-1], back, alone),
                scale=scale,
            )
            of_q = of_q.transpose(1, 2).unflatten(0, own.shape[:2])
            of_k, of_v = (_fold(x, own.shape[:2], seen.shape) for x in (of_k, of_v))
            _add(d_q, own, of_q[..., :width])
            _add(d_q_extra, own, of_q[..., width:].sum(3))
            _add(d_k, seen, of_k[..., :width])
            _add(d_k_extra, seen, of_k[..., width:].sum(3))
            _add(d_v, seen, of_v[..., :width])
    return d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), d_q_extra, d_k_extra


@_forward.register_fake
def _(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=torch.float32)


@_backward.register_fake
def _(grad: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in tensors[:5])


def _setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.back, ctx.scale, ctx.itself = inputs
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx, grad: Tensor, _: Tensor):  # type: ignore[no-untyped-def]
    found = _backward(grad, *ctx.saved_tensors, ctx.back, ctx.scale, ctx.itself)
    return *found, None, None, None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_setup)


def _pieces(
    q: Tensor, places: Tensor, groups: int, back: int
) -> Iterator[tuple[tuple[slice, slice], Tensor, Tensor]]:
    """Cut the work: some whole sequences each, or some blocks of one.

    Yields the blocks as slices, and the rows, 0..T-1, of their tokens (B, G, S) and of all tokens
    in their sight (B, G + R - 1, S).
    """
    batch, length, width = places.shape
    reach = length - groups + 1
    blocks = max(1, PIECE // max(1, reach * width * q[0].numel()))
    rows, blocks = max(1, blocks // max(1, groups)), min(blocks, groups)
    for row in range(0, batch, rows):
        some = slice(row, min(row + rows, batch))
        for first in range(0, groups, max(1, blocks)):
            last = min(first + blocks, groups)
            yield (
                (some, slice(first, last)),
                places[some, back + first : back + last],
                windows(places[some, first : last + reach - 1], reach),
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


def _zeros(shape: torch.Size) -> Tensor:
    return torch.zeros(shape, dtype=torch.float32)  # whatever the default


def _take(x: Tensor, index: Tensor) -> Tensor:
    """Rows, in float32."""
    return x.index_select(0, index.flatten()).float().unflatten(0, index.shape)


def _add(total: Tensor, index: Tensor, part: Tensor) -> None:
    """Add to rows; two dimensions and contiguous, as PyTorch is fast for."""
    total.flatten(1).index_add_(0, index.flatten(), part.reshape(index.numel(), -1))


def _bias(mask: Tensor, width: int, back: int, itself: float) -> Tensor:
    bias = _zeros(mask.shape).masked_fill_(~mask, float("-inf")).flatten(0, 1)
    if itself:
        bias = bias.expand(-1, width, -1).contiguous()
        bias.diagonal(back * width, 1, 2).add_(itself)
    return bias[:, None]
