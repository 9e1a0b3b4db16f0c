"""Attention in blocks whose tokens lie on several processes.

B batch   H heads   n tokens of this process   N tokens of the sequence   D head width
A additional columns   G blocks   J blocks that a block sees   S slots of a block   P processes
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from clusterformer.kernels.blocks import Blocks, window_mask
from clusterformer.kernels.chunk_attention import chunk_attention
from clusterformer.sequence_parallel.sequence_group import SequenceGroup


class Route(NamedTuple):
    """Rows that this process exchanges with the others, for one set of slots.

    Attributes:
        tokens: Local tokens to send, as b * n + i, first those for process 0.
        sent: Number of rows for each process.
        slots: Local slots of the rows that come, as b * slots + i, first those of process 0.
        received: Number of rows from each process.
    """

    tokens: Tensor
    sent: list[int]
    slots: Tensor
    received: list[int]


def parallel_chunk_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Blocks,
    lengths: Sequence[int],
    group: SequenceGroup,
    *,
    scale: float,
    causal: bool = False,
    extra: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Apply `chunk_attention` where each process holds a share of the tokens.

    The blocks are divided among the processes, as many tokens to each. A process gets the rows of
    its blocks and of those that they see, attends, and sends the values back.

    Args:
        q, k, v: (B, H, n, D) of this process's tokens.
        blocks: Index structure of the whole sequences, (B, ...), the same on all processes.
        lengths: Number of tokens of each process; their sum is N.
        group: The processes.
        scale: Factor on the logits.
        causal: As in `chunk_attention`; blocks must then hold tokens in the order of the text.
        extra: Additional columns of q and of k, (B, n, A) each.

    Returns:
        (B, H, n, D), equal to the share of what one process would compute.

    Cost: O(N / P) rows sent and O(N J S / P) time for a process; O(N) integers everywhere.
    """
    batch, heads, length, width = q.shape
    first, last = _divide(blocks, group)[group.rank]
    reach, size = blocks.visible.shape[-1], blocks.members.shape[-1]
    in_route = _route(blocks.members, blocks.filled, blocks, lengths, group, reach - 1)
    own = blocks.own
    out_route = _route(blocks.members[:, own], blocks.own_filled, blocks, lengths, group, 0)

    parts = [*(x.transpose(1, 2).flatten(2) for x in (q, k, v)), *(extra or ())]
    widths = [x.shape[-1] for x in parts]
    rows = torch.cat([x.to(q.dtype) for x in parts], -1).flatten(0, 1)
    found = group.exchange(rows[in_route.tokens], in_route.sent, in_route.received)
    if first < last:
        local = _local_blocks(blocks, first, last)
        held = found.new_zeros(local.filled.numel(), found.shape[-1])
        held = held.index_copy(0, in_route.slots, found).view(batch, -1, found.shape[-1])
        q, k, v, *columns = held.split(widths, -1)
        q, k, v = (x.unflatten(-1, (heads, width)).transpose(1, 2) for x in (q, k, v))
        mixed = chunk_attention(
            q, k, v, local, scale=scale, causal=causal, mask=window_mask(local, causal),
            extra=(columns[0], columns[1]) if columns else None,
        )  # fmt: skip
        values = mixed.transpose(1, 2)[:, blocks.look_back * size :][:, : (last - first) * size]
        values = values.flatten(2).flatten(0, 1)[out_route.slots]
    else:  # fewer blocks than processes; of the graph, so that gradients are exchanged here too
        values = found[:, : heads * width]
    back = group.exchange(values, out_route.received, out_route.sent)
    mixed = back.new_zeros(batch * length, heads * width).index_copy(0, out_route.tokens, back)
    return mixed.view(batch, length, heads, width).transpose(1, 2)


def _divide(blocks: Blocks, group: SequenceGroup) -> list[tuple[int, int]]:
    """Divide the blocks into a range for each process, with as many tokens in each."""
    tokens = blocks.own_filled.sum((0, 2))
    middles = tokens.cumsum(0) - tokens / 2
    goals = tokens.sum() * torch.arange(1, group.size, device=tokens.device) / group.size
    cuts = [0, *torch.searchsorted(middles, goals).tolist(), len(tokens)]
    return list(pairwise(cuts))


def _route(
    members: Tensor,
    filled: Tensor,
    blocks: Blocks,
    lengths: Sequence[int],
    group: SequenceGroup,
    beyond: int,
) -> Route:
    """Find the rows to exchange so that each process gets the tokens of its slots.

    Args:
        members, filled: (B, entries, S) token in each slot, and whether there is one.
        blocks: The whole index structure.
        lengths: Number of tokens of each process.
        group: The processes.
        beyond: Number of entries after its last block that a process needs too.
    """
    ends = torch.tensor(lengths, device=members.device).cumsum(0)
    start = int(ends[group.rank]) - lengths[group.rank]
    batch = torch.arange(len(members), device=members.device)[:, None, None]
    holder = torch.searchsorted(ends, members.contiguous(), right=True).masked_fill(~filled, -1)
    tokens, sent = [], []
    ranges = [
        slice(first, last + beyond if first < last else last)
        for first, last in _divide(blocks, group)
    ]
    for part in ranges:
        mine = holder[:, part] == group.rank
        token = (batch * lengths[group.rank] + members[:, part] - start)[mine]
        tokens.append(token)
        sent.append(len(token))
    holders = holder[:, ranges[group.rank]].flatten()
    received = [int((holders == rank).sum()) for rank in range(group.size)]
    slots = torch.argsort(holders, stable=True)[len(holders) - sum(received) :]  # -1 stand first
    return Route(torch.cat(tokens), sent, slots, received)


def _local_blocks(blocks: Blocks, first: int, last: int) -> Blocks:
    """Make the index structure of blocks first .. last - 1, whose tokens stand in their slots."""
    reach, size = blocks.visible.shape[-1], blocks.members.shape[-1]
    part = slice(first, last + reach - 1)
    filled, visible = blocks.filled[:, part], blocks.visible[:, first:last]
    index = torch.arange(filled[0].numel(), device=filled.device)
    members = index.view(1, -1, size).expand_as(filled)
    own = torch.zeros_like(filled)
    own[:, blocks.look_back :][:, : last - first] = blocks.own_filled[:, first:last]
    slot = index.masked_fill(~own.flatten(1), -1)
    copies = index.masked_fill(~filled.flatten(1), -1)[..., None]
    members = members.masked_fill(~filled, 0)
    return Blocks(members, filled, slot, copies, visible, blocks.look_back, padded=True)
