"""The keys that queries see where queries and keys have clusters of their own.

Z rows (heads of texts)   N tokens   C clusters   P clusters of a key   S chunk size
G groups of queries   K keys that a group sees
"""

from typing import NamedTuple

import torch
from torch import Tensor

from clusterformer.kernels.blocks import Sorted, window_mask, windows
from clusterformer.kernels.chunking import cluster_chunks
from clusterformer.kernels.grouping import sort
from clusterformer.kernels.ordering import ceil_div, count_up_to


class Selection(NamedTuple):
    """Keys of each group of queries. Queries of a group see the same chunks of one cluster.

    Attributes:
        members: (Z, G, S) query in each slot of a group.
        in_slot: (Z, G, S), True where a slot holds a query.
        seen: (Z, G, K) keys that a group sees.
        filled: (Z, G, K), True where there is a key.
        allowed: (Z, G, S, K), False for a key that a query does not see. A query without a key,
            or an empty slot, has all allowed, as a softmax needs one.
        counts: (Z, N), number of keys that a query sees.
        keyless: (Z, N), True where that is none.
    """

    members: Tensor
    in_slot: Tensor
    seen: Tensor
    filled: Tensor
    allowed: Tensor
    counts: Tensor
    keyless: Tensor


def select_keys(
    wanted: Tensor,
    offered: Tensor,
    num_clusters: int,
    chunk_size: int,
    mask: Tensor | None = None,
    *,
    causal: bool,
) -> Selection:
    """Let each query see the chunk of keys that its cluster has reached at it, and the one before.

    Args:
        wanted: (Z, N) cluster of each token as a query.
        offered: (Z, N, P) clusters of each token as a key.
        num_clusters: Number of clusters (C).
        chunk_size: Number of keys in a chunk of a cluster.
        mask: (Z, N), True at real tokens; None means all real.
        causal: A query sees itself and tokens before it only; else the chunk after its own as well.

    Cost: O(N P log(N P)) time, O(N (P + chunk_size)) memory.
    """
    copies = offered.shape[2]
    real = None if mask is None else mask[..., None].expand_as(offered).flatten(1)
    grouped = sort(offered.flatten(1), num_clusters, real)
    chunks = cluster_chunks(grouped, chunk_size, real, look_ahead=0 if causal else 1)
    size = chunks.members.shape[-1]

    met = _keys_before(grouped, offered, wanted, real)
    reached = (met.clamp(min=1) - 1) // size  # chunk of its cluster
    end = (reached + 2) * size
    last = met if causal else torch.minimum(grouped.counts.gather(1, wanted), end)
    counts = last - (reached - 1).clamp(min=0) * size
    keyless = counts < 1

    per_cluster = ceil_div(grouped.counts, size)
    first = per_cluster.cumsum(1) - per_cluster  # chunk of each cluster
    chunk = (first.gather(1, wanted) + reached).masked_fill(keyless, 0)
    number, reach = chunks.visible.shape[1:]
    slots = max(4, size // copies)  # a chunk of S keys meets about S / P queries
    groups = cluster_chunks(sort(chunk, number, mask), slots, mask, look_back=0)

    members, in_slot = groups.members, groups.filled
    index = chunk.gather(1, members[..., 0])[..., None].expand(-1, -1, reach * size)
    seen = windows(chunks.members // copies, reach).gather(1, index)
    filled = window_mask(chunks)[:, :, 0].gather(1, index)
    allowed = filled[:, :, None].expand(-1, -1, members.shape[2], -1)
    if causal:
        allowed = allowed & (seen[:, :, None] <= members[..., None])
    unused = keyless.gather(1, members.flatten(1)).view_as(members) | ~in_slot
    allowed = allowed | unused[..., None]
    return Selection(members, in_slot, seen, filled, allowed, counts, keyless)


def _keys_before(
    grouped: Sorted, offered: Tensor, wanted: Tensor, key_mask: Tensor | None
) -> Tensor:
    """Count, (Z, N), the keys up to each token that its cluster as a query holds.

    Args:
        grouped: The N * P copies of keys in the order of their clusters.
        offered: (Z, N, P) clusters of each key.
        wanted: (Z, N) cluster of each query.
        key_mask: (Z, N * P), True at copies of real tokens; None means all real.
    """
    copies, total = offered.shape[2], offered.shape[1] * offered.shape[2]
    index = torch.arange(total, device=offered.device)
    rank = offered.flatten(1) * total + index  # by cluster, then by token
    if key_mask is not None:
        rank = rank.masked_fill(~key_mask, grouped.counts.shape[1] * total)
    last = wanted * total + index[copies - 1 :: copies]
    start = (grouped.counts.cumsum(1) - grouped.counts).gather(1, wanted)
    return count_up_to(rank.gather(1, grouped.order), last) - start
