"""Counting of the tokens that a token attends to: what a mechanism selects, as one number.

B batch   H heads   N tokens   C clusters   G blocks   S slots of a block or cluster
J blocks that a block sees   Z rows: sequences, or heads of sequences

`keys_seen` of a token is the share of the real tokens of its sequence whose keys take part in the
softmax of its output, the token itself among them. Where attention is causal it is the share of the
tokens up to itself. So full attention has 1 in both forms, shared-QK too, and so have mechanisms
that approximate the weights of all keys (clustered, improved clustered and multipole attention):
they select none. NSA has 1 although it selects: it reads some tokens one by one, and all in the
means of their blocks.
A key counts once, however often it is met; padding never counts; a key of negligible weight counts.

The functions here count from the blocks or clusters of a mechanism; no N x N matrix is made.
"""

import torch
from torch import Tensor

from clusterformer.attention.grouping import Grouping
from clusterformer.kernels.blocks import Blocks, windows

MAX_PAIRS = 2**22
"""Maximum number of pairs of slots that are compared at a time, 16 MiB in float32."""


def share_of_tokens(counts: Tensor, mask: Tensor, causal: bool) -> Tensor:
    """Divide counts of tokens by the number of tokens that there are to see.

    Args:
        counts: (B, N), or (B, H, N).
        mask: (B, N), True at real tokens.
        causal: Whether only the tokens up to its own are there for a token.

    Returns:
        (B, N), the mean over heads; 0 at padding.
    """
    if counts.dim() == 3:
        counts = counts.float().mean(1)
    there = mask.cumsum(-1) if causal else mask.sum(-1, keepdim=True)
    return (counts.float() / there.clamp(min=1)).masked_fill(~mask, 0.0)


def count_in_blocks(blocks: Blocks, causal: bool) -> Tensor:
    """Count the tokens that each token meets in the blocks that its own sees.

    Args:
        blocks: Index structure of sequences, or of heads: Z rows.
        causal: Whether a token meets only those up to its own position.

    Returns:
        (Z, N); any number at padding.

    Cost: O(N) where not causal, else O(N J log(J S)).
    """
    width, reach = blocks.members.shape[-1], blocks.visible.shape[-1]
    slot = blocks.slot.clamp(min=0) - blocks.look_back * width
    slot = slot.clamp(min=0)  # of padding, which has none
    if not causal:
        filled = blocks.filled.sum(-1).unfold(1, reach, 1)  # (Z, G, J)
        return (filled * blocks.visible).sum(-1).gather(1, slot // width)
    length = blocks.slot.shape[1]
    seen = windows(blocks.filled, reach) & blocks.visible.repeat_interleave(width, -1)
    keys = windows(blocks.members, reach).masked_fill(~seen, length).sort(-1).values
    queries = blocks.members[:, blocks.own].contiguous()
    return torch.searchsorted(keys, queries, right=True).flatten(1).gather(1, slot)


def count_in_clusters(
    assignment: Tensor, keys: Tensor, queries: Tensor | None, causal: bool
) -> Tensor:
    """Count the tokens that each token meets in the clusters that take it.

    Args:
        assignment: (B, H, N) cluster of each token.
        keys: (B, H, C, S) tokens that the queries of each cluster attend to; -1 where a slot is
            empty.
        queries: (B, H, C, S') tokens that each cluster takes as queries, likewise; a token that no
            cluster takes sees itself. None: each token is in the cluster of `assignment`.
        causal: Whether a token meets only those up to its own position.

    Returns:
        (B, H, N).

    Cost: O(N) for one cluster a token; else O(C^2 S S') time, in pieces of bounded memory.
    """
    if queries is None:
        if causal:
            raise ValueError("causal counting in clusters needs queries, got None")
        return (keys >= 0).sum(-1).gather(2, assignment)
    batch, heads, length = assignment.shape
    keys, queries = keys.flatten(0, 1), queries.flatten(0, 1)  # (B * H, C, S)
    pairs = keys.shape[1] * keys.shape[2] * queries.shape[2]
    at_once = max(1, MAX_PAIRS // max(1, pairs))
    counts = [
        _count_pairs(some_queries, some_keys, length, causal)
        for some_queries, some_keys in zip(queries.split(at_once), keys.split(at_once), strict=True)
    ]
    return torch.cat(counts).view(batch, heads, length)


def _count_pairs(queries: Tensor, keys: Tensor, length: int, causal: bool) -> Tensor:
    """Count different keys of each query, (Z, N), from slots (Z, C, S) and (Z, C, S')."""
    query_in, key_in = (_membership(x, length) for x in (queries, keys))  # (Z, N + 1, C)
    clusters, rows = queries.shape[1], torch.arange(len(queries), device=queries.device)
    rows = rows[:, None, None]
    with torch.autocast(queries.device.type, enabled=False):  # these are counts
        shared = query_in[rows, queries] @ key_in[rows, keys].mT  # (Z, C, S, S')
    met = (queries[..., None] >= 0) & (keys[..., None, :] >= 0)
    if causal:
        met = met & (keys[..., None, :] <= queries[..., None])
    # a pair that n clusters share is met n times, and counts 1 / n each time
    seen = torch.where(met, 1 / shared.clamp(min=1), 0.0).sum(-1)
    slots = queries.masked_fill(queries < 0, length).view(len(queries), clusters * queries.shape[2])
    counts = query_in.new_zeros(len(queries), length + 1)
    counts = counts.scatter_add(1, slots, seen.flatten(1))[:, :length].round()
    return torch.where(query_in[:, :length].any(-1), counts, 1.0)


def _membership(slots: Tensor, length: int) -> Tensor:
    """Turn tokens in slots (Z, C, S), -1 for none, to memberships (Z, N + 1, C) of 0 and 1."""
    members = slots.masked_fill(slots < 0, length)
    shape = len(slots), slots.shape[1], length + 1
    found = torch.zeros(shape, dtype=torch.float32, device=slots.device)
    return found.scatter_(2, members, 1.0).transpose(1, 2)


def sees(grouping: Grouping, other: Tensor) -> Tensor | None:
    """Tell whether a token can attend to one other token, in some head, where nothing is causal.

    Heads beside those that cluster, such as local ones, do not count.

    Args:
        grouping: Result of grouping.
        other: (B, N), position of a token for each token.

    Returns:
        (B, N) bool; None where the mechanism does not say which tokens meet.
    """
    assignment, blocks = grouping.assignment, grouping.blocks
    heads = assignment.shape[1] if assignment.dim() == 3 else 1
    others = other.repeat_interleave(heads, 0)  # (B * H, N)
    if blocks is not None:
        rounds = len(blocks.slot) // len(others)
        met = _sees_in_blocks(blocks, others.repeat(rounds, 1))
        return met.unflatten(0, (rounds, len(other), heads)).any(2).any(0)
    if grouping.keys is None:
        return None
    length, keys = other.shape[1], grouping.keys.flatten(0, 1)
    seen = _membership(keys, length) > 0  # (B * H, N + 1, C)
    seen = seen.gather(1, others[..., None].expand(-1, -1, keys.shape[1]))
    if grouping.queries is None:
        met = seen.gather(2, assignment.reshape(len(keys), length, 1))[..., 0]
    else:
        taken = _membership(grouping.queries.flatten(0, 1), length)[:, :length] > 0
        met = (taken & seen).any(-1)
    return met.unflatten(0, (len(other), heads)).any(1)


def _sees_in_blocks(blocks: Blocks, other: Tensor) -> Tensor:
    """Tell, (Z, N), whether the block of each token sees the token `other`, (Z, N)."""
    width, span = blocks.members.shape[-1], blocks.visible.shape[-1]
    own = (blocks.slot // width - blocks.look_back).clamp(min=0)  # (Z, N)
    copies = blocks.copies.gather(1, other[..., None].expand_as(blocks.copies))  # (Z, N, copies)
    ahead = copies // width - own[..., None]
    visible = blocks.visible.gather(1, own[..., None].expand(-1, -1, span))  # (Z, N, span)
    within = (ahead >= 0) & (ahead < span)  # -1, no copy, is before every block
    return (within & visible.gather(2, ahead.clamp(0, span - 1))).any(-1)
