"""The last tokens of each cluster, kept while decoding.

B batch   C clusters   S slots a ring   H heads   D width   L places in the pool
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rings(NamedTuple):
    """A ring of S slots for each cluster; slot s holds its latest token of rank s modulo S.

    Slots name places in a pool of keys and values that all rings of a row share. The pool grows
    with the text until every ring is full: a short text takes little memory, a long one no more
    than C * S places.

    Attributes:
        keys, values: The pool, (B, L, H, D).
        places: Place of each slot, (B, C, S) integer; of empty slots it means nothing.
        counts: Tokens so far of each cluster, (B, C).
    """

    keys: Tensor
    values: Tensor
    places: Tensor
    counts: Tensor


class Held(NamedTuple):
    """What one ring of each row holds.

    Attributes:
        keys, values: (B, H, S', D), S' the slots of the fullest of these rings.
        age: (B, S'), tokens of the cluster that came after; meaningless for empty slots.
        rank: (B,), how many came before the latest.
    """

    keys: Tensor
    values: Tensor
    age: Tensor
    rank: Tensor


def empty(like: Tensor, *, clusters: int, size: int, heads: int, width: int) -> Rings:
    """Rings without tokens; `like` (B, ...) gives batch, dtype and device."""
    pool = like.new_zeros(like.shape[0], 0, heads, width)
    places = pool.new_zeros(len(pool), clusters, size, dtype=torch.int32)
    return Rings(pool, pool, places, places.new_zeros(len(pool), clusters, dtype=torch.long))


def push(rings: Rings, cluster: Tensor, key: Tensor, value: Tensor) -> tuple[Rings, Held]:
    """Add a token a row to the ring of its cluster, and look at that ring.

    Args:
        rings: Written into, or into a larger copy: it is used up.
        cluster: (B,).
        key, value: (B, H, D).
    """
    keys, values, places, counts = rings
    size = places.shape[2]
    row = torch.arange(len(cluster), device=cluster.device)
    rank = counts[row, cluster]
    slot = rank % size
    taken = counts.clamp(max=size).sum(1)
    place = torch.where(rank < size, taken, places[row, cluster, slot])
    if (needed := int(place.max()) + 1) > keys.shape[1]:
        room = min(needed + needed // 2 + 8, counts.shape[1] * size) - keys.shape[1]
        keys, values = (
            torch.cat([pool, pool.new_zeros(len(pool), room, *pool.shape[2:])], 1)
            for pool in (keys, values)
        )
    keys[row, place], values[row, place] = key.to(keys.dtype), value.to(values.dtype)
    places[row, cluster, slot] = place.to(places.dtype)
    counts[row, cluster] += 1

    slots = torch.arange(min(size, int(rank.max()) + 1), device=rank.device)
    held = row[:, None] * keys.shape[1] + places[row, cluster][:, : len(slots)]
    seen_keys, seen_values = (
        pool.flatten(0, 1).index_select(0, held.flatten()).unflatten(0, held.shape).transpose(1, 2)
        for pool in (keys, values)
    )
    age = (rank[:, None] - slots) % size
    return Rings(keys, values, places, counts), Held(seen_keys, seen_values, age, rank)
