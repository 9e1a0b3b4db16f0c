"""Decoding steps that attend to the ring cache of a cluster.

B batch   H heads   N tokens   D head width
"""

import torch.nn.functional as F
from torch import Tensor

from clusterformer.attention.base import Cache
from clusterformer.clustering.ring_cache import append


def ring_entries(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Make entries of a ring cache, (B, N, width) each, of keys and values (B, H, N, D)."""
    v = F.pad(v, (0, k.shape[-1] - v.shape[-1]))  # as wide as keys: see `ring_step`
    return k.transpose(1, 2).flatten(2), v.transpose(1, 2).flatten(2)


def ring_step(
    q: Tensor, k: Tensor, v: Tensor, cluster: Tensor, chunk: int, cache: Cache, scale: float
) -> tuple[Tensor, Cache]:
    """Append a token to the ring of its cluster, and attend to the chunks that it sees.

    Args:
        q, k, v: (B, H, 1, D); keys may be wider than values.
        cluster: Cluster of the token, (B,).
        chunk: Tokens of a chunk.
        cache: Ring cache.
        scale: Factor on the logits.

    Returns:
        Values (B, H, 1, D), and the cache.
    """
    width = v.shape[-1]
    v = F.pad(v, (0, k.shape[-1] - width))  # the fused kernel wants values as wide as keys
    seen, mask, cache = append(cache, cluster, (k.flatten(1), v.flatten(1)), chunk)
    key, value = (x.unflatten(2, (q.shape[1], -1)).transpose(1, 2).to(q.dtype) for x in seen)
    mixed = F.scaled_dot_product_attention(
        q, key, value, attn_mask=mask[:, None, None], scale=scale
    )
    return mixed[..., :width], cache
