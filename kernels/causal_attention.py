"""Attention of each token to all before it, on CPU: without the later half of short texts too.

B batch   H heads   N tokens   D head width

PyTorch's kernel for CPU leaves out later keys in large blocks: its causal form takes the time of
all pairs at 512 tokens, 0.8 of it at 1,024 and half of it at 4,096, backward too (torch 2.13). Here
the queries are cut into strips, and a strip gets only the keys up to its own end.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.kernels.autograd import register_backward

STRIP = 64
"""Number of queries in a strip."""

LONGEST = 1024
"""Number of tokens up to which strips are faster. On CPU, forward and backward, 16 heads of 64, one
thread: 1.5 times as fast at 512 tokens, 1.2 times at 1,024, not at 2,048."""

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Apply softmax attention of each token to itself and all tokens before it.

    Computes in float32 on CPU in every dtype: there PyTorch's bfloat16 attention is up to ten times
    slower backward.

    Args:
        q, k, v: (B, H, N, D).
        scale: Factor on the logits q . k.

    Returns:
        (B, H, N, D) in the dtype of q.

    Cost: O(N^2 D) time, O(N D) memory.
    """
    if q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    with torch.autocast("cpu", enabled=False):
        query, key, value = q.float(), k.float(), v.float()
        if _in_strips(query):
            return _forward(query, key, value, scale)[0].to(q.dtype)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    return mixed.to(q.dtype)


def values_and_masses(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Compute values (B, H, N, D) and log-sum-exps (B, H, N); float32 on CPU."""
    q, k, v = (_whole_rows(x) for x in (q, k, v))
    if not _in_strips(q):
        return _flash(q, k, v, 0.0, True, scale=scale)
    values, masses = q.new_empty(q.shape), q.new_empty(q.shape[:3])
    for strip, keys, bias in _strips(q):
        values[:, :, strip], masses[:, :, strip] = _flash(
            q[:, :, strip], k[:, :, keys], v[:, :, keys], 0.0, False, attn_mask=bias, scale=scale
        )
    return values, masses


def gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, values: Tensor, masses: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of q, k and v from what `values_and_masses` returned."""
    grad, q, k, v = (_whole_rows(x) for x in (grad, q, k, v))
    if not _in_strips(q):
        return _flash_backward(grad, q, k, v, values, masses, 0.0, True, scale=scale)
    dq, dk, dv = q.new_empty(q.shape), k.new_zeros(k.shape), v.new_zeros(v.shape)
    for strip, keys, bias in _strips(q):
        own = (x[:, :, strip] for x in (grad, q))
        dq[:, :, strip], part_dk, part_dv = _flash_backward(
            *own, k[:, :, keys], v[:, :, keys], values[:, :, strip], masses[:, :, strip],
            0.0, False, attn_mask=bias, scale=scale,
        )  # fmt: skip
        dk[:, :, keys] += part_dk
        dv[:, :, keys] += part_dv
    return dq, dk, dv


def _whole_rows(x: Tensor) -> Tensor:
    """Lay the numbers of each row side by side: PyTorch's kernel takes for granted that they are.

    Rotated heads of width 2 are not, nor is what was transposed.
    """
    return x if x.stride(-1) == 1 else x.contiguous()


def _in_strips(q: Tensor) -> bool:
    if torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export():  # for any length
        return False
    return STRIP < q.shape[2] <= LONGEST


def _strips(q: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Cut the queries; yield each strip, its keys, and the bias (queries, keys) on its logits."""
    length = q.shape[2]
    later = torch.full((STRIP, STRIP), float("-inf"), dtype=q.dtype).triu_(1)
    bias = F.pad(later, (length, 0))
    for first in range(0, length, STRIP):
        last = min(first + STRIP, length)
        columns = slice(length - first, length - first + last)
        yield slice(first, last), slice(last), bias[: last - first, columns]


@torch.library.custom_op("clusterformer::causal_attention", mutates_args=())
def _forward(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return values_and_masses(q, k, v, scale)


@torch.library.custom_op("clusterformer::causal_attention_backward", mutates_args=())
def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, values: Tensor, masses: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return gradients(grad, q, k, v, values, masses, scale)


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:3])


register_backward(_forward, _backward, gradients=3)
