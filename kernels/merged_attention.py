"""Causal attention to near keys, merged with the values of far keys.

B batch   N tokens   D width
"""

import torch
from torch import Tensor

from clusterformer.kernels.autograd import register_backward
from clusterformer.kernels.causal_attention import gradients, values_and_masses
from clusterformer.kernels.dispatch import use_cpu
from clusterformer.kernels.merging import gradients_of_more, merge


def merged_attention(q: Tensor, k: Tensor, v: Tensor, far: Tensor, far_mass: Tensor) -> Tensor:
    """Apply causal softmax attention within blocks, and merge far keys (MuSe, eq. 8).

    out = (exp(near_mass) near + exp(far_mass) far) / (exp(near_mass) + exp(far_mass))

    Args:
        q, k, v: (B, N, D), one block per row; the scale is folded into q.
        far: (B, N, D) values of attention to other keys.
        far_mass: (B, N, 1) log of the sum of exp(q . k) over them; -1e30 for none.

    Cost: O(N^2 D) time, O(N D) memory on CPU.
    """
    if use_cpu(q.device):
        return _forward(q, k, v, far, far_mass)[0]
    return reference(q, k, v, far, far_mass)


def reference(q: Tensor, k: Tensor, v: Tensor, far: Tensor, far_mass: Tensor) -> Tensor:
    """Define `merged_attention`."""
    length = q.shape[1]
    before = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
    scores = (q @ k.transpose(1, 2)).masked_fill(~before, float("-inf"))
    weights = torch.cat([scores, far_mass], -1).softmax(-1)
    return weights[..., :-1] @ v + weights[..., -1:] * far


@torch.library.custom_op("clusterformer::merged_attention", mutates_args=())
def _forward(
    q: Tensor, k: Tensor, v: Tensor, far: Tensor, far_mass: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute values (B, N, D) and the log-sum-exp (B, N, 1) over near and far keys."""
    near, near_mass = values_and_masses(q[:, None], k[:, None], v[:, None], 1.0)
    near_mass = near_mass[:, 0]
    out, mass = merge(near[:, 0], near_mass, far, far_mass[..., 0])
    return out, mass[..., None]


@torch.library.custom_op("clusterformer::merged_attention_backward", mutates_args=())
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    far: Tensor,
    far_mass: Tensor,
    out: Tensor,
    mass: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute gradients: the fused backward serves near keys, given values and mass of ALL keys."""
    given, query, key, value, mixed = (x[:, None] for x in (grad, q, k, v, out))
    near = gradients(given, query, key, value, mixed, mass[:, None, :, 0], 1.0)
    dq, dk, dv = (x[:, 0].contiguous() for x in near)
    dfar, dmass = gradients_of_more(grad, out, mass[..., 0], far, far_mass[..., 0])
    return dq, dk, dv, dfar, dmass[..., None]


@_forward.register_fake
def _(q: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty(*q.shape[:2], 1)


register_backward(_forward, _backward, gradients=5)
