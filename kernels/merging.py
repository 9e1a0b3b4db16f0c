"""One softmax over two sets of keys, from the values and the masses of each (MuSe, eq. 8).

The mass of a query is the log of the sum of exp over the logits of its keys. Kernels merge further
keys into their own values before they save them: with values and masses of ALL keys the gradient
of either set is that of a separate softmax.

D width
"""

import torch
from torch import Tensor

NO_MASS = -1e30
"""Mass of no keys, and logit of a hidden key: finite, so that differences and gradients are too."""


def merge(
    values: Tensor, masses: Tensor, more: Tensor, more_masses: Tensor
) -> tuple[Tensor, Tensor]:
    """Merge values (..., D) and masses (...) with those of further keys; empty tensors are none.

    In place, where `values` have the dtype of masses.
    """
    if not more.numel():
        return values, masses
    total = torch.logaddexp(masses, more_masses)
    own_share, share = ((x - total).exp()[..., None] for x in (masses, more_masses))
    return values.to(masses.dtype).mul_(own_share).addcmul_(more, share), total


def gradients_of_more(
    grad: Tensor, values: Tensor, masses: Tensor, more: Tensor, more_masses: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute gradients of `more` and `more_masses`, given merged values and masses."""
    if not more.numel():
        return torch.empty_like(more), torch.empty_like(more_masses)
    share = (more_masses - masses).exp()
    difference = (grad * (more - values)).sum(-1)
    return share[..., None] * grad.to(share.dtype), share * difference
