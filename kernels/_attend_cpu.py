"""`reference.attend` on CPU, piece by piece: windows live in the cache and not in memory.

Letters as in reference.py.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from clusterformer.kernels.reference import windows

PIECE = 2**18
"""Most numbers in the keys' windows of one piece: 1 MiB, about what a core's cache holds."""

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Softmax attention of blocks over their windows; see `reference.attend`.

    In float32 whatever comes in: PyTorch's bfloat16 attention is slower backward on CPU.

    Traffic: reads q, k, v and writes the values once; the R copies of k and v in the windows stay
    in the cache. 4 B G R S^2 H D operations forward, 10 backward.
    """
    out, _ = _attend(query.float(), key.float(), value.float(), mask, scale)
    return out.to(query.dtype)


@torch.library.custom_op("clusterformer::attend", mutates_args=())
def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Values (B, G, S, H, D) and log-sum-exp (B, G, H, S)."""
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    logsumexp = query.new_empty(*query.shape[:2], query.shape[3], query.shape[2])
    reach = key.shape[1] - query.shape[1] + 1
    for own, seen in _pieces(query, reach):
        q, k, v = _heads(query[own]), _window(key[seen], reach), _window(value[seen], reach)
        values, sums = _flash(q, k, v, 0.0, False, attn_mask=_bias(mask[own]), scale=scale)
        out[own] = values.transpose(1, 2).view_as(out[own])
        logsumexp[own] = sums.view_as(logsumexp[own])
    return out, logsumexp


@_attend.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    return out, query.new_empty(*query.shape[:2], query.shape[3], query.shape[2])


@torch.library.custom_op("clusterformer::attend_backward", mutates_args=())
def _attend_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value."""
    reach = key.shape[1] - query.shape[1] + 1
    for_query = torch.empty_like(query, memory_format=torch.contiguous_format)
    for_key = torch.zeros_like(key, memory_format=torch.contiguous_format)
    for_value = torch.zeros_like(value, memory_format=torch.contiguous_format)
    for own, seen in _pieces(query, reach):
        q, k, v = _heads(query[own]), _window(key[seen], reach), _window(value[seen], reach)
        found = _flash_backward(
            _heads(grad[own]), q, k, v, _heads(out[own]), logsumexp[own].flatten(0, 1),
            0.0, False, attn_mask=_bias(mask[own]), scale=scale,
        )  # fmt: skip
        for_query[own] = found[0].transpose(1, 2).view_as(for_query[own])
        rows, blocks = own
        for total, part in ((for_key, found[1]), (for_value, found[2])):
            copies = part.transpose(1, 2).unflatten(0, query[own].shape[:2])
            for entry, copy in enumerate(copies.unflatten(2, (reach, -1)).unbind(2)):
                total[rows, blocks.start + entry : blocks.stop + entry] += copy
    return for_query, for_key, for_value


@_attend_backward.register_fake
def _(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    contiguous = torch.contiguous_format
    like = (torch.empty_like(x, memory_format=contiguous) for x in (query, key, value))
    return tuple(like)  # type: ignore[return-value]


def _setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx, grad: Tensor, _: Tensor):  # type: ignore[no-untyped-def]
    return *_attend_backward(grad, *ctx.saved_tensors, ctx.scale), None, None


_attend.register_autograd(_backward, setup_context=_setup)


def _pieces(query: Tensor, reach: int) -> Iterator[tuple[tuple[slice, slice], tuple[slice, slice]]]:
    """Own blocks and the places they see: some whole sequences each, or some blocks of one."""
    batch, groups, width, heads, head_width = query.shape
    blocks = max(1, PIECE // max(1, reach * width * heads * head_width))
    rows = max(1, blocks // max(1, groups))
    blocks = min(blocks, groups)
    for row in range(0, batch, rows):
        some = slice(row, min(row + rows, batch))
        for first in range(0, groups, max(1, blocks)):
            last = min(first + blocks, groups)
            yield (some, slice(first, last)), (some, slice(first, last + reach - 1))


def _heads(x: Tensor) -> Tensor:
    """(B, G, S, H, D) to (B * G, H, S, D)."""
    return x.flatten(0, 1).transpose(1, 2)


def _window(x: Tensor, reach: int) -> Tensor:
    return _heads(windows(x, reach))


def _bias(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill_(~mask, float("-inf")).flatten(0, 1)[:, None]
