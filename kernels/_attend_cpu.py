"""`reference.attend` on CPU, piece by piece: windows live in the cache and not in memory.

Letters as in reference.py.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from clusterformer.kernels.reference import widen, windows

Slices = tuple[slice, slice]

PIECE = 2**19
"""Most numbers in the keys' windows of one piece: 2 MiB, about what a core's cache holds."""

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_extra: Tensor,
    key_extra: Tensor,
    mask: Tensor,
    scale: float,
) -> Tensor:
    """Softmax attention of blocks over their windows; see `reference.attend`.

    In float32 whatever comes in: PyTorch's bfloat16 attention is slower backward on CPU.

    Traffic: reads q, k, v and writes the values once; the R copies of k and v in the windows stay
    in the cache. 4 B G R S^2 H D operations forward, 10 backward.
    """
    tensors = (x.float() for x in (query, key, value, query_extra, key_extra))
    out, _ = _attend(*tensors, mask, scale)
    return out.to(query.dtype)


@torch.library.custom_op("clusterformer::attend", mutates_args=())
def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_extra: Tensor,
    key_extra: Tensor,
    mask: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Values (B, G, S, H, D) and log-sum-exp (B, G, H, S)."""
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    logsumexp = query.new_empty(*query.shape[:2], query.shape[3], query.shape[2])
    tensors = query, key, value, query_extra, key_extra, mask
    for own, _, q, k, v, bias in _pieces(*tensors):
        values, sums = _flash(q, k, v, 0.0, False, attn_mask=bias, scale=scale)
        out[own] = values[..., : out.shape[-1]].transpose(1, 2).view_as(out[own])
        logsumexp[own] = sums.view_as(logsumexp[own])
    return out, logsumexp


@torch.library.custom_op("clusterformer::attend_backward", mutates_args=())
def _attend_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_extra: Tensor,
    key_extra: Tensor,
    mask: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value and the extra columns."""
    width = query.shape[-1]
    reach = key.shape[1] - query.shape[1] + 1
    d_query, d_query_extra = _empty(query), _empty(query_extra)
    d_key, d_value, d_key_extra = (_empty(x).zero_() for x in (key, value, key_extra))
    tensors = query, key, value, query_extra, key_extra, mask
    for own, (rows, places), q, k, v, bias in _pieces(*tensors):
        of_q, of_k, of_v = _flash_backward(
            widen(grad[own], None, query_extra), q, k, v, widen(out[own], None, query_extra),
            logsumexp[own].flatten(0, 1), 0.0, False, attn_mask=bias, scale=scale,
        )  # fmt: skip
        of_q = of_q.transpose(1, 2).unflatten(0, query[own].shape[:2])
        d_query[own] = of_q[..., :width]
        d_query_extra[own] = of_q[..., width:].sum(3)
        of_k, of_v = of_k.transpose(1, 2), of_v.transpose(1, 2)
        for total, part in (
            (d_key, of_k[..., :width]),
            (d_value, of_v[..., :width]),
            (d_key_extra, of_k[..., width:].sum(2)),
        ):
            # each block's place in each window that holds it
            copies = part.unflatten(0, query[own].shape[:2]).unflatten(2, (reach, -1)).unbind(2)
            for entry, copy in enumerate(copies):
                total[rows, places.start + entry : places.stop - reach + 1 + entry] += copy
    return d_query, d_key, d_value, d_query_extra, d_key_extra


@_attend.register_fake
def _(query: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return _empty(query), query.new_empty(*query.shape[:2], query.shape[3], query.shape[2])


@_attend_backward.register_fake
def _(grad: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(_empty(x) for x in tensors[:5])


def _setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx, grad: Tensor, _: Tensor):  # type: ignore[no-untyped-def]
    return *_attend_backward(grad, *ctx.saved_tensors, ctx.scale), None, None


_attend.register_autograd(_backward, setup_context=_setup)


def _pieces(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_extra: Tensor,
    key_extra: Tensor,
    mask: Tensor,
) -> Iterator[tuple[Slices, Slices, Tensor, Tensor, Tensor, Tensor]]:
    """Cut the work: some whole sequences, or some blocks of one.

    Yields own blocks and the places they see, as slices; queries, keys and values with the extra
    columns, (B * G, H, S or R * S, D + P); and the mask as summands.
    """
    batch, groups, width, heads, head_width = query.shape
    reach = key.shape[1] - groups + 1
    blocks = max(1, PIECE // max(1, reach * width * heads * head_width))
    rows, blocks = max(1, blocks // max(1, groups)), min(blocks, groups)
    for row in range(0, batch, rows):
        for first in range(0, groups, max(1, blocks)):
            some, last = slice(row, min(row + rows, batch)), min(first + blocks, groups)
            own, seen = (some, slice(first, last)), (some, slice(first, last + reach - 1))
            k, v, extra = (windows(x[seen], reach) for x in (key, value, key_extra))
            bias = torch.zeros(mask[own].shape).masked_fill_(~mask[own], float("-inf"))
            yield (
                own,
                seen,
                widen(query[own], query_extra[own]),
                widen(k, extra),
                widen(v, None, extra),
                bias.flatten(0, 1)[:, None],
            )


def _empty(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)
