"""Chunking in Triton: each way of cutting tokens into blocks in two launches; see `chunking`.

B batch   N tokens   C clusters   S block size (slots)   G blocks   J blocks that a block sees
E entries, G + J - 1
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from clusterformer.kernels._chunking_torch import Cut
from clusterformer.kernels._grid_triton import row_of_program, spread_rows
from clusterformer.kernels.blocks import Blocks

TILE = 256
"""Tokens, or slots, that a program handles at a time."""


@triton.jit
def _fill(p_order, p_members, p_filled, first, count, row, S, BLOCK_N: tl.constexpr):
    """Write `count` tokens from sorted position `first` on into the S slots of an entry."""
    for start in range(0, S, BLOCK_N):
        slot = start + tl.arange(0, BLOCK_N)
        filled = slot < count
        token = tl.load(p_order + first + slot, mask=filled, other=0)
        tl.store(p_members + row * S + slot, token, mask=slot < S)
        tl.store(p_filled + row * S + slot, filled, mask=slot < S)


@triton.jit
def _widths(length, max_blocks, min_width):
    """Slots of a block, and blocks that hold tokens, of a sequence of `length` tokens."""
    width = tl.maximum((length + max_blocks - 1) // max_blocks, min_width)
    return width, tl.maximum((length + width - 1) // width, 1)


@triton.jit
def _circle_kernel(
    p_order, p_lengths, p_members, p_filled, p_visible, N, E, G, S, max_blocks, min_width,
    LOOK_BACK: tl.constexpr, LOOK_AHEAD: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Find the tokens of an entry of the circle, and the entries that its block sees.

    Traffic: B E S 17 bytes.
    """
    entry = tl.program_id(0)
    batch = row_of_program()
    length = tl.load(p_lengths + batch)
    width, used = _widths(length, max_blocks, min_width)
    block = entry - LOOK_BACK
    held = (block < used + LOOK_AHEAD) & (block >= -used)  # once around the circle
    first = (block + used) % used * width
    count = tl.where(held, tl.minimum(width, length - first), 0)
    _fill(p_order + batch * N, p_members, p_filled, first, count, batch * E + entry, S, BLOCK_N)
    # A circle of fewer blocks than a window: each once, the own one among them.
    offset = tl.arange(0, BLOCK_J) - LOOK_BACK
    before = tl.minimum(used - 1, LOOK_BACK)
    after = tl.minimum(used - 1 - before, LOOK_AHEAD)
    visible = (block < used) & (offset >= -before) & (offset <= after)
    if (block >= 0) & (block < G):
        at = (batch * G + block) * (LOOK_BACK + 1 + LOOK_AHEAD) + LOOK_BACK + offset
        tl.store(p_visible + at, visible, mask=offset <= LOOK_AHEAD)


@triton.jit
def _circle_slots_kernel(
    p_inverse, p_lengths, p_real, p_copies, N, S, max_blocks, min_width,
    LOOK_BACK: tl.constexpr, LOOK_AHEAD: tl.constexpr, PADDED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Find the slots of a tile of tokens: the own one, and those a turn of the circle away.

    Traffic: B N 33 bytes.
    """
    batch = row_of_program()
    token = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = token < N
    width, used = _widths(tl.load(p_lengths + batch), max_blocks, min_width)
    position = tl.load(p_inverse + batch * N + token, mask=inside, other=0)
    real = inside
    if PADDED:
        real = tl.load(p_real + batch * N + token, mask=inside, other=0) != 0
    for turn in tl.static_range(3):
        entry = position // width + LOOK_BACK
        if turn == 1:
            entry -= used
        if turn == 2:
            entry += used
        exists = real & (entry >= 0) & (entry < used + LOOK_BACK + LOOK_AHEAD)
        slot = tl.where(exists, entry * S + position % width, -1)
        tl.store(p_copies + (batch * N + token) * 3 + turn, slot, mask=inside)


@triton.jit
def _count_up_to(p_bounds, value, C, steps):
    """Count the ascending bounds (C,) that are no larger than a value, by halving `steps` times."""
    low = value * 0
    high = low + C
    for _ in range(steps):
        middle = (low + high) // 2
        searching = low < high
        up_to = tl.load(p_bounds + middle, mask=searching, other=0) <= value
        low = tl.where(searching & up_to, middle + 1, low)
        high = tl.where(up_to, high, middle)
    return low


@triton.jit
def _chunks_kernel(
    p_order, p_counts, p_token_ends, p_chunk_ends, p_members, p_filled, p_visible, N, C, E, G, S,
    steps, LOOK_BACK: tl.constexpr, LOOK_AHEAD: tl.constexpr, BLOCK_J: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Find the tokens of a chunk of a cluster, and the chunks of its cluster that it sees.

    Traffic: B E (S 17 + 8 log C) bytes.
    """
    entry = tl.program_id(0)
    batch = row_of_program()
    block = (entry - LOOK_BACK).to(tl.int64)
    first_cluster = batch * C
    cluster = tl.minimum(_count_up_to(p_chunk_ends + first_cluster, block, C, steps), C - 1)
    cluster += first_cluster
    tokens = tl.load(p_counts + cluster)
    chunks = (tokens + S - 1) // S
    within = block - (tl.load(p_chunk_ends + cluster) - chunks)  # chunk of its cluster
    first = tl.load(p_token_ends + cluster) - tokens + within * S
    count = tl.where(within >= 0, tl.minimum(tokens - within * S, S), 0)
    _fill(p_order + batch * N, p_members, p_filled, first, count, batch * E + entry, S, BLOCK_N)
    offset = tl.arange(0, BLOCK_J) - LOOK_BACK
    seen = within + offset
    visible = (count > 0) & (seen >= 0) & (seen < chunks)
    if (block >= 0) & (block < G):
        at = (batch * G + block) * (LOOK_BACK + 1 + LOOK_AHEAD) + LOOK_BACK + offset
        tl.store(p_visible + at, visible, mask=offset <= LOOK_AHEAD)


@triton.jit
def _chunk_slots_kernel(
    p_inverse, p_counts, p_token_ends, p_chunk_ends, p_real, p_slot, N, C, S, steps,
    LOOK_BACK: tl.constexpr, PADDED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Find the slot of each token of a tile in the chunks of its cluster.

    Traffic: B N (17 + 8 log C) bytes.
    """
    batch = row_of_program()
    token = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = token < N
    position = tl.load(p_inverse + batch * N + token, mask=inside, other=0)
    cluster = _count_up_to(p_token_ends + batch * C, position, C, steps)
    cluster = batch * C + tl.minimum(cluster, C - 1)  # any at padding
    tokens = tl.load(p_counts + cluster)
    chunk = tl.load(p_chunk_ends + cluster) - (tokens + S - 1) // S
    rank = position - (tl.load(p_token_ends + cluster) - tokens)
    slot = (chunk + LOOK_BACK) * S + rank
    if PADDED:
        real = tl.load(p_real + batch * N + token, mask=inside, other=0) != 0
        slot = tl.where(real, slot, -1)
    tl.store(p_slot + batch * N + token, slot, mask=inside)


@triton.jit
def _pack_kernel(
    p_members, p_filled, p_copies, p_visible, p_packed, p_own, N, E, G, S, J,
    LOOK_BACK: tl.constexpr, COPIES: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write what the kernels of attention read of an entry; see `packed`.

    Traffic: B E S 13 bytes.
    """
    entry = tl.program_id(0)
    batch = row_of_program()
    row = (batch * E + entry) * S
    held = tl.full([], -1, tl.int64)  # a token of the entry; its first slot may be empty
    for start in range(0, S, BLOCK_N):
        slot = start + tl.arange(0, BLOCK_N)
        token = tl.load(p_members + row + slot, mask=slot < S, other=0)
        filled = tl.load(p_filled + row + slot, mask=slot < S, other=0) != 0
        token = tl.where(filled, token, -1)
        tl.store(p_packed + row + slot, token.to(tl.int32), mask=slot < S)
        held = tl.maximum(held, tl.max(token, 0))
    block = entry - LOOK_BACK
    if (block >= 0) & (block < G):
        offset = tl.arange(0, BLOCK_J)
        at = p_visible + (batch * G + block) * J + offset
        live = (held >= 0) & (tl.max(tl.load(at, mask=offset < J, other=0).to(tl.int32), 0) != 0)
        token = batch * N + tl.maximum(held, 0)
        for copy in tl.static_range(COPIES):
            slot = tl.load(p_copies + token * COPIES + copy)
            entry_of_copy = tl.where(live & (slot >= 0), slot // S, -1)
            tl.store(p_own + (batch * G + block) * COPIES + copy, entry_of_copy)


@torch.library.custom_op("clusterformer::circle_triton", mutates_args=())
def circle(
    order: Tensor, inverse: Tensor, lengths: Tensor, key_mask: Tensor | None, num_blocks: int,
    width: int, max_blocks: int, min_width: int, look_back: int, look_ahead: int,
) -> Cut:  # fmt: skip
    """Cut sequences into equal blocks, seen around a circle; see `_chunking_torch`."""
    batch, length = order.shape
    cut = members, filled, copies, visible = _empty(order, num_blocks, width, look_back, look_ahead)
    entries, size = members.shape[1], (max_blocks, min_width)
    looks = {"LOOK_BACK": look_back, "LOOK_AHEAD": look_ahead}
    grid = entries, *spread_rows(batch)
    _circle_kernel[grid](
        order.contiguous(), lengths, members, filled, visible, length, entries, num_blocks, width,
        *size, **looks, BLOCK_J=triton.next_power_of_2(visible.shape[2]), BLOCK_N=TILE,
    )  # fmt: skip
    inverse, padded = inverse.contiguous(), key_mask is not None
    real = inverse if key_mask is None else key_mask.contiguous()
    grid = triton.cdiv(length, TILE), *spread_rows(batch)
    _circle_slots_kernel[grid](
        inverse, lengths, real, copies, length, width, *size, **looks, PADDED=padded, BLOCK_N=TILE
    )
    return cut


@circle.register_fake
def _(
    order: Tensor, inverse: Tensor, lengths: Tensor, key_mask: Tensor | None, num_blocks: int,
    width: int, max_blocks: int, min_width: int, look_back: int, look_ahead: int,
) -> Cut:  # fmt: skip
    return _empty(order, num_blocks, width, look_back, look_ahead)


@torch.library.custom_op("clusterformer::chunks_triton", mutates_args=())
def chunks(
    order: Tensor, inverse: Tensor, counts: Tensor, key_mask: Tensor | None, num_blocks: int,
    width: int, look_back: int, look_ahead: int,
) -> Cut:  # fmt: skip
    """Cut each cluster into chunks; see `_chunking_torch`."""
    batch, length = order.shape
    cut = members, filled, slot, visible = _empty(
        order, num_blocks, width, look_back, look_ahead, copies=1
    )
    entries, clusters = members.shape[1], counts.shape[1]
    counts = counts.contiguous()
    ends = counts.cumsum(1), ((counts + width - 1) // width).cumsum(1)
    steps = clusters.bit_length()
    grid = entries, *spread_rows(batch)
    _chunks_kernel[grid](
        order.contiguous(), counts, *ends, members, filled, visible, length, clusters, entries,
        num_blocks, width, steps, LOOK_BACK=look_back, LOOK_AHEAD=look_ahead,
        BLOCK_J=triton.next_power_of_2(visible.shape[2]), BLOCK_N=TILE,
    )  # fmt: skip
    inverse, padded = inverse.contiguous(), key_mask is not None
    real = inverse if key_mask is None else key_mask.contiguous()
    grid = triton.cdiv(length, TILE), *spread_rows(batch)
    _chunk_slots_kernel[grid](
        inverse, counts, *ends, real, slot, length, clusters, width, steps,
        LOOK_BACK=look_back, PADDED=padded, BLOCK_N=TILE,
    )  # fmt: skip
    return cut


@chunks.register_fake
def _(
    order: Tensor, inverse: Tensor, counts: Tensor, key_mask: Tensor | None, num_blocks: int,
    width: int, look_back: int, look_ahead: int,
) -> Cut:  # fmt: skip
    return _empty(order, num_blocks, width, look_back, look_ahead, copies=1)


row = chunks
"""Neighbours are a single cluster."""


def packed(blocks: Blocks) -> tuple[Tensor, Tensor]:
    """Make of blocks what the kernels of attention read.

    Returns:
        members: (B, E, S) 32-bit token in each slot; -1 for none.
        own_entries: (B, G, copies) entries that hold each block, the own one first; -1 for none.
    """
    fields = blocks.members, blocks.filled, blocks.copies, blocks.visible
    return _pack(*(x.contiguous() for x in fields), blocks.look_back)


@torch.library.custom_op("clusterformer::pack_triton", mutates_args=())
def _pack(
    members: Tensor, filled: Tensor, copies: Tensor, visible: Tensor, look_back: int
) -> tuple[Tensor, Tensor]:
    batch, entries, width = members.shape
    length, number = copies.shape[1:]
    groups, reach = visible.shape[1:]
    members_of, own = _empty_pack(members, copies, visible)
    grid = entries, *spread_rows(batch)
    _pack_kernel[grid](
        members, filled, copies, visible, members_of, own, length, entries, groups, width, reach,
        LOOK_BACK=look_back, COPIES=number, BLOCK_J=triton.next_power_of_2(reach), BLOCK_N=TILE,
    )  # fmt: skip
    return members_of, own


@_pack.register_fake
def _(
    members: Tensor, filled: Tensor, copies: Tensor, visible: Tensor, look_back: int
) -> tuple[Tensor, Tensor]:
    return _empty_pack(members, copies, visible)


def _empty(
    order: Tensor, num_blocks: int, width: int, look_back: int, look_ahead: int, copies: int = 3
) -> Cut:
    batch, length = order.shape
    members = order.new_empty(batch, num_blocks + look_back + look_ahead, width)
    visible = order.new_empty(batch, num_blocks, look_back + 1 + look_ahead, dtype=torch.bool)
    slots = order.new_empty(batch, length, copies)
    return members, torch.empty_like(members, dtype=torch.bool), slots, visible


def _empty_pack(members: Tensor, copies: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    own = copies.new_empty(*visible.shape[:2], copies.shape[2])
    return torch.empty_like(members, dtype=torch.int32), own
