"""Softmax attention that returns the masses too, with gradients of values and masses.

B batch, blocks folded in   N queries   M keys   D width of queries and keys   F width of values
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from clusterformer.kernels.autograd import register_backward
from clusterformer.kernels.dispatch import use_cpu

SLICE = 2**19
"""Number of logits computed at a time on CPU, where larger parts leave the cache."""


def attention_and_masses(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Apply softmax attention within each block.

    Args:
        q: (B, N, D), the scale folded in.
        k: (B, M, D).
        v: (B, M, F).
        bias: (B, 1, M), added to the logits of a key; finite. -1e30 hides a key; values where all
            are hidden are finite, and mean nothing.

    Returns:
        Values (B, N, F), and the mass of each query, the log of the sum of exp over its logits,
        (B, N, 1).

    Cost: O(B N M (D + F)) time; on CPU no memory for logits, which are computed again backward.
    """
    if use_cpu(q.device):
        return _forward(q, k, v, bias)
    return reference(q, k, v, bias)


def reference(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Define `attention_and_masses`."""
    scores = q @ k.transpose(1, 2) + bias
    masses = scores.logsumexp(-1, keepdim=True)
    return (scores - masses).exp() @ v, masses


@torch.library.custom_op("clusterformer::attention_and_masses", mutates_args=())
def _forward(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    shape = q.shape[:2]
    values, masses = q.new_empty(*shape, v.shape[-1]), q.new_empty(*shape, 1)
    for rows in _slices(q, k):
        scores = torch.baddbmm(bias[rows], q[rows], k[rows].transpose(1, 2))
        largest = scores.amax(-1, keepdim=True)
        weights = scores.sub_(largest).exp_()
        total = weights.sum(-1, keepdim=True)
        torch.bmm(weights, v[rows], out=values[rows])
        values[rows] /= total
        masses[rows] = total.log_().add_(largest)
    return values, masses


@torch.library.custom_op("clusterformer::attention_and_masses_backward", mutates_args=())
@torch.autocast("cpu", enabled=False)  # backward may run in the user's
def _backward(
    grad: Tensor,
    mass_grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    values: Tensor,
    masses: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv, dbias = (x.new_empty(x.shape) for x in (q, k, v, bias))
    shift = mass_grad - (grad * values).sum(-1, keepdim=True)
    for rows in _slices(q, k):
        scores = torch.baddbmm(bias[rows], q[rows], k[rows].transpose(1, 2))
        weights = scores.sub_(masses[rows]).exp_()
        torch.bmm(weights.transpose(1, 2), grad[rows], out=dv[rows])
        dscores = torch.baddbmm(shift[rows], grad[rows], v[rows].transpose(1, 2)).mul_(weights)
        torch.bmm(dscores, k[rows], out=dq[rows])
        torch.bmm(dscores.transpose(1, 2), q[rows], out=dk[rows])
        torch.sum(dscores, 1, keepdim=True, out=dbias[rows])
    return dq, dk, dv, dbias


def _slices(q: Tensor, k: Tensor) -> Iterator[slice]:
    """Cut the batch into parts of `SLICE` logits."""
    step = max(1, SLICE // max(1, q.shape[1] * k.shape[1]))
    for first in range(0, q.shape[0], step):
        yield slice(first, first + step)


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:2], v.shape[-1]), q.new_empty(*q.shape[:2], 1)


register_backward(_forward, _backward, gradients=4, differentiable=2)
