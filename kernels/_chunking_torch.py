"""Chunking in plain PyTorch: the specification of `_chunking_triton`; see `chunking`.

B batch   N tokens   C clusters   S block size (slots)   G blocks   J blocks that a block sees
E entries, G + J - 1
"""

import torch
from torch import Tensor

from clusterformer.kernels.ordering import ceil_div, count_up_to

Cut = tuple[Tensor, Tensor, Tensor, Tensor]
"""Members and filled (B, E, S), copies (B, N, any) and visible (B, G, J), as in `Blocks`."""


def circle(
    order: Tensor, inverse: Tensor, lengths: Tensor, key_mask: Tensor | None, num_blocks: int,
    width: int, max_blocks: int, min_width: int, look_back: int, look_ahead: int,
) -> Cut:  # fmt: skip
    """Cut sequences into equal blocks, seen around a circle.

    Args:
        order, inverse: (B, N), as in `Sorted`.
        lengths: (B, 1) number of real tokens.
        key_mask: (B, N), True at real tokens; None means all real.
        num_blocks, width: G and S, enough for the longest sequence.
        max_blocks, min_width: A sequence of n tokens has blocks of ceil(n / max_blocks), but at
            least `min_width`.
        look_back, look_ahead: Number of blocks seen before and after the own one.
    """
    length, device = order.shape[1], order.device
    widths = ceil_div(lengths, max_blocks).clamp(min=min_width)
    used = ceil_div(lengths, widths).clamp(min=1)  # (B, 1) blocks that hold tokens

    block = torch.arange(-look_back, num_blocks + look_ahead, device=device)
    held = (block < used + look_ahead) & (block >= -used)  # once around the circle
    rank = torch.arange(width, device=device)
    position = (block % used * widths)[..., None] + rank  # (B, G + J - 1, S)
    filled = held[..., None] & (rank < widths[..., None]) & (position < lengths[..., None])
    members = order.gather(1, position.clamp(max=length - 1).flatten(1)).view(position.shape)
    members = members.masked_fill(~filled, 0)

    own_block, rank = inverse.div(widths, rounding_mode="floor"), inverse % widths
    turns = torch.cat([torch.zeros_like(used), -used, used], 1)  # made here: a GPU waits for copies
    entries = (own_block + look_back)[..., None] + turns[:, None]  # (B, N, 3)
    exists = (entries >= 0) & (entries < used[..., None] + look_back + look_ahead)
    copies = (entries * width + rank[..., None]).masked_fill(~exists, -1)
    if key_mask is not None:
        copies = copies.masked_fill(~key_mask[..., None], -1)

    # A circle of fewer blocks than a window: each once, the own one among them.
    before = (used - 1).clamp(max=look_back)
    after = (used - 1 - before).clamp(max=look_ahead)
    offset = torch.arange(-look_back, look_ahead + 1, device=device)
    inside = torch.arange(num_blocks, device=device) < used  # (B, G)
    visible = inside[..., None] & ((offset >= -before) & (offset <= after))[:, None]
    return members, filled, copies, visible


def chunks(
    order: Tensor, inverse: Tensor, counts: Tensor, key_mask: Tensor | None, num_blocks: int,
    width: int, look_back: int, look_ahead: int,
) -> Cut:  # fmt: skip
    """Cut each cluster into chunks.

    Args:
        order, inverse, counts: (B, N), (B, N) and (B, C), as in `Sorted`.
        key_mask: (B, N), True at real tokens; None means all real.
        num_blocks: G, enough for clusters of any size.
        width: S.
        look_back, look_ahead: Number of chunks of its cluster seen before and after the own one.
    """
    batch, length = order.shape
    device, clusters = order.device, counts.shape[1]
    number = ceil_div(counts, width)  # (B, C) chunks of each cluster
    chunk_end, token_end = number.cumsum(1), counts.cumsum(1)
    chunk_start, token_start = chunk_end - number, token_end - counts

    block = torch.arange(-look_back, num_blocks + look_ahead, device=device)
    block = block.expand(batch, -1).contiguous()
    owner = count_up_to(chunk_end, block).clamp(max=clusters - 1)
    within = block - chunk_start.gather(1, owner)  # chunk of its cluster; negative before all
    rank = within[..., None] * width + torch.arange(width, device=device)
    filled = (rank >= 0) & (rank < counts.gather(1, owner)[..., None])
    position = (token_start.gather(1, owner)[..., None] + rank).clamp(0, length - 1)
    members = order.gather(1, position.flatten(1)).view(rank.shape).masked_fill(~filled, 0)

    cluster = cluster_of_each(inverse, counts)
    rank = inverse - token_start.gather(1, cluster)
    slot = (chunk_start.gather(1, cluster) + look_back) * width + rank
    if key_mask is not None:
        slot = slot.masked_fill(~key_mask, -1)

    own = slice(look_back, -look_ahead or None)
    offset = torch.arange(-look_back, look_ahead + 1, device=device)
    live = filled[:, own].any(-1, keepdim=True)  # (B, G, 1)
    chunk = within[:, own, None] + offset
    visible = live & (chunk >= 0) & (chunk < number.gather(1, owner[:, own])[..., None])
    return members, filled, slot[..., None], visible


def row(
    order: Tensor, inverse: Tensor, lengths: Tensor, key_mask: Tensor | None, num_blocks: int,
    width: int, look_back: int, look_ahead: int,
) -> Cut:  # fmt: skip
    """Cut neighbours into blocks, as `chunks` does with one cluster, in fewer operations."""
    batch, length = order.shape
    device, reach = order.device, look_back + look_ahead + 1
    block = torch.arange(-look_back, num_blocks + look_ahead, device=device)
    position = block[:, None] * width + torch.arange(width, device=device)  # (G + J - 1, S)
    filled = (position >= 0) & (position < lengths[..., None])
    members = order[:, position.clamp(0, length - 1).flatten()].view(batch, *position.shape)
    slot = inverse + look_back * width
    if key_mask is not None:
        slot = slot.masked_fill(~key_mask, -1)
    used = filled.any(-1)
    visible = torch.stack([used[:, seen : seen + num_blocks] for seen in range(reach)], 2)
    visible = visible & visible[..., look_back, None]  # (B, G, J)
    return members.masked_fill(~filled, 0), filled, slot[..., None], visible


def cluster_of_each(inverse: Tensor, counts: Tensor) -> Tensor:
    """Cluster of each token, (B, N); any at padding."""
    ends = counts.cumsum(1)
    return count_up_to(ends, inverse.contiguous()).clamp(max=ends.shape[1] - 1)
