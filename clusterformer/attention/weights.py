"""The attention weights of any mechanism, without a word of how it computes them.

B batch   H heads   N queries   M keys   D head width
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from clusterformer.attention.base import AttentionCore


def attention_weights(core: AttentionCore, q: Tensor, k: Tensor, **inputs: Any) -> Tensor:
    """Compute the weights by which each query mixes the values of the keys.

    A mechanism mixes values linearly, so the rows of an identity as values come out as weights.

    Args:
        core: Mechanism, in evaluation mode.
        q: (B, H, N, D).
        k: (B, H, M, D).
        inputs: Other inputs of the mechanism, such as `hidden` and `key_mask`.

    Returns:
        (B, H, N, M) in the dtype of q.

    Cost: M / D calls of the mechanism.
    """
    count, width = k.shape[2:]
    units = torch.eye(count, -(-count // width) * width, dtype=k.dtype, device=k.device)
    parts = [core(q, k, part.expand_as(k), **inputs)[0] for part in units.split(width, dim=1)]
    return torch.cat(parts, -1)[..., :count]
