"""Ring caches for decoding: the last chunks of each cluster, each cluster in a ring.

B rows   C clusters   S ring size (slots)
"""

import torch
from torch import Tensor


def make_ring_cache(
    rows: int, clusters: int, size: int, like: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Make empty rings, for `append`.

    A ring holds the pool positions of its tokens. All rings of a row share a pool, which grows
    with the text until every ring is full: so a short text takes little memory.

    Args:
        rows: B.
        clusters: C.
        size: S, tokens that a cluster keeps.
        like: For each entry of a token, a tensor (..., width) of its dtype.
    """
    pools = tuple(x.new_zeros(rows, 0, x.shape[-1]) for x in like)
    positions = torch.zeros(rows, clusters, size, dtype=torch.int32, device=like[0].device)
    return *pools, positions, torch.zeros(rows, clusters, dtype=torch.long, device=like[0].device)


def append(
    cache: tuple[Tensor, ...], cluster: Tensor, entries: tuple[Tensor, ...], chunk: int
) -> tuple[tuple[Tensor, ...], Tensor, tuple[Tensor, ...]]:
    """Append a token to the ring of its cluster, and return the tokens that it sees.

    Args:
        cache: Cache from `make_ring_cache` or the last call. It is written to; use the new one
            that is returned.
        cluster: Cluster of the token, (B,).
        entries: Entries of the token, each (B, width).
        chunk: Tokens per chunk; divides S.

    Returns:
        The entries and the mask that `look_up` returns, and the new cache.
    """
    cache = insert(cache, cluster, entries)
    return *look_up(cache, cluster, chunk), cache


def insert(
    cache: tuple[Tensor, ...], cluster: Tensor, entries: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Append a token to the ring of its cluster; the arguments and the new cache of `append`."""
    *pools, positions, counts = cache
    size = positions.shape[2]
    row = torch.arange(len(cluster), device=cluster.device)
    rank = counts[row, cluster]
    used = counts.clamp(max=size).sum(1)  # positions taken in the pools
    position = torch.where(rank < size, used, positions[row, cluster, rank % size])
    length = pools[0].shape[1]
    if (needed := int(position.max()) + 1) > length:
        length = min(needed + needed // 2 + 8, counts.shape[1] * size)
        pools = [
            torch.cat([x, x.new_zeros(len(x), length - x.shape[1], x.shape[2])], 1) for x in pools
        ]
    for pool, entry in zip(pools, entries, strict=True):
        pool[row, position] = entry.to(pool.dtype)
    positions[row, cluster, rank % size] = position.to(positions.dtype)
    counts[row, cluster] += 1
    return *pools, positions, counts


def look_up(
    cache: tuple[Tensor, ...], cluster: Tensor, chunk: int
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return the latest tokens of a cluster: its chunk so far and the chunks before it.

    They are those that the last token of the cluster sees, as `cluster_chunks` cuts them.

    Args:
        cache: Cache that holds a token.
        cluster: A cluster of each row, (B,); it may be empty.
        chunk: Tokens per chunk; divides S.

    Returns:
        The entries of up to S tokens, each (B, at most S, width), and the mask of those seen,
        (B, at most S).
    """
    *pools, positions, counts = cache
    size, length = positions.shape[2], pools[0].shape[1]
    row = torch.arange(len(cluster), device=cluster.device)
    rank = counts[row, cluster] - 1  # of the last one
    # Slot s of a ring holds the latest token of its cluster whose rank is s modulo its size.
    slots = torch.arange(max(1, min(size, int(rank.max()) + 1)), device=rank.device)
    age = (rank[:, None] - slots) % size
    mask = age <= torch.minimum(rank, rank % chunk + size - chunk)[:, None]
    index = (row[:, None] * length + positions[row, cluster][:, : len(slots)]).flatten()
    seen = (x.flatten(0, 1).index_select(0, index).unflatten(0, mask.shape) for x in pools)
    return tuple(seen), mask


def fill(
    cache: tuple[Tensor, ...], cluster: Tensor, entries: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Fill an empty cache with N tokens at once, as N calls of `append` do.

    Args:
        cache: Cache from `make_ring_cache`.
        cluster: Cluster of each token, (B, N).
        entries: Entries of each token, each (B, N, width).
    """
    *pools, positions, counts = cache
    size, cluster = positions.shape[2], cluster.long()
    counts = counts.scatter_add(1, cluster, torch.ones_like(cluster))
    rank = _ranks(cluster, counts)
    kept = rank >= counts.gather(1, cluster) - size  # all but the last S are overwritten
    position = kept.cumsum(1) - 1
    row, token = kept.nonzero(as_tuple=True)
    length = int(kept.sum(1).max())
    filled = [pool.new_zeros(len(pool), length, pool.shape[2]) for pool in pools]
    for pool, entry in zip(filled, entries, strict=True):
        pool[row, position[row, token]] = entry[row, token].to(pool.dtype)
    slot = rank[row, token] % size
    positions[row, cluster[row, token], slot] = position[row, token].to(positions.dtype)
    return (*filled, positions, counts)


def _ranks(cluster: Tensor, counts: Tensor) -> Tensor:
    """Count the tokens of its cluster before each token, (B, N), of clusters of sizes (B, C)."""
    found, order = cluster.sort(dim=1, stable=True)
    starts = counts.cumsum(1) - counts
    positions = torch.arange(cluster.shape[1], device=cluster.device)
    return torch.empty_like(order).scatter_(1, order, positions - starts.gather(1, found))
