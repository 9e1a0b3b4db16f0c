"""Caches of the first tokens of a text and of rings, and steps that attend to a ring.

B batch   H heads   G clusterings   Z rows: B * G   N tokens   D head width
"""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from clusterformer.attention.base import Cache
from clusterformer.clustering.ring_cache import append, fill

_RING = 4  # tensors of a ring cache: keys, values, positions and counts


class ClusterCache(NamedTuple):
    """What a mechanism with clusters and local heads keeps of a text while it decodes.

    Attributes:
        length: Number of tokens so far, (B,), the same in every row.
        first: Rows of the first tokens, each (B, ..., width).
        far: Ring cache of the clusters, (Z, ...).
        near: Ring cache of the local heads, which are one cluster, (B, ...).
    """

    length: Tensor
    first: Cache
    far: Cache
    near: Cache

    @classmethod
    def read(cls, cache: Cache) -> "ClusterCache":
        """Undo `flat`."""
        far = tuple(x.flatten(0, 1) for x in cache[-2 * _RING : -_RING])
        return cls(cache[0], cache[1 : -2 * _RING], far, cache[-_RING:])

    def flat(self, clusterings: int) -> Cache:
        """List the tensors, each with the batch first."""
        far = (x.unflatten(0, (-1, clusterings)) for x in self.far)
        return self.length, *self.first, *far, *self.near


def fill_ring(k: Tensor, v: Tensor, cluster: Tensor, cache: Cache) -> Cache:
    """Fill an empty ring cache with tokens k, v (B, H, N, D) of clusters (B, N)."""
    v = F.pad(v, (0, k.shape[-1] - v.shape[-1]))  # as wide as keys: see `ring_step`
    return fill(cache, cluster, (k.transpose(1, 2).flatten(2), v.transpose(1, 2).flatten(2)))


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
