"""What clusters keep of a text while it is written: their last chunks, each in a ring.

B rows   C clusters   S places a ring   L places in a pool
"""

import torch
from torch import Tensor


def rings(rows: int, clusters: int, size: int, like: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Rings without tokens, for `push`.

    Args:
        rows: B.
        clusters: C.
        size: S, tokens that a cluster keeps.
        like: For each thing that a token brings, a tensor (..., width) of its dtype.
    """
    pools = tuple(x.new_zeros(rows, 0, x.shape[-1]) for x in like)
    places = torch.zeros(rows, clusters, size, dtype=torch.int32, device=like[0].device)
    return *pools, places, torch.zeros(rows, clusters, dtype=torch.long, device=places.device)


def push(
    cache: tuple[Tensor, ...], cluster: Tensor, entries: tuple[Tensor, ...], chunk: int
) -> tuple[tuple[Tensor, ...], Tensor, tuple[Tensor, ...]]:
    """Add a token to the ring of its cluster, and show what it sees.

    That is its own chunk so far and the chunks before it, as `kernels.cluster_chunks` cuts them.

    A ring holds the places of its tokens in pools that all rings of a row share, and that grow
    with the text until every ring is full: so a short text takes little memory.

    Args:
        cache: From `rings` or the last call. It is written to; take the new one that is returned.
        cluster: (B,).
        entries: What the token brings, each (B, width).
        chunk: Tokens a chunk; divides S.

    Returns:
        What the tokens in sight brought, each (B, at most S, width); which of them are in sight,
        (B, at most S); the new cache.
    """
    *pools, places, counts = cache
    size = places.shape[2]
    row = torch.arange(len(cluster), device=cluster.device)
    rank = counts[row, cluster]
    held = counts.clamp(max=size).sum(1)  # places taken in the pools
    place = torch.where(rank < size, held, places[row, cluster, rank % size])
    length = pools[0].shape[1]
    if (needed := int(place.max()) + 1) > length:
        length = min(needed + needed // 2 + 8, counts.shape[1] * size)
        pools = [
            torch.cat([x, x.new_zeros(len(x), length - x.shape[1], x.shape[2])], 1) for x in pools
        ]
    for pool, entry in zip(pools, entries, strict=True):
        pool[row, place] = entry.to(pool.dtype)
    places[row, cluster, rank % size] = place.to(places.dtype)
    counts[row, cluster] += 1
    # Slot s of a ring holds the latest token of its cluster whose rank is s modulo its size.
    slots = torch.arange(min(size, int(rank.max()) + 1), device=rank.device)
    age = (rank[:, None] - slots) % size
    mask = age <= torch.minimum(rank, rank % chunk + size - chunk)[:, None]
    seen = (row[:, None] * length + places[row, cluster][:, : len(slots)]).flatten()
    shown = (x.flatten(0, 1).index_select(0, seen).unflatten(0, mask.shape) for x in pools)
    return tuple(shown), mask, (*pools, places, counts)
