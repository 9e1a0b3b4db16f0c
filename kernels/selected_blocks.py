"""Attention of each query to some blocks of keys of its own choice.

B batch   H heads   N tokens   D head width   S block size   G blocks   T blocks chosen by a query
P queries of a group
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.kernels.chunking import cluster_chunks
from clusterformer.kernels.grouping import sort
from clusterformer.kernels.merging import NO_MASS
from clusterformer.kernels.rows import gather_own, pick_rows, resort

GROUP = 32
"""P: queries that meet a block together."""


def number_of_blocks(length: int, block_size: int) -> int:
    """Count the blocks of a text (G); in an exported graph at least 2, of which one may be empty.

    Of one block the strides would be a guard on the length.
    """
    blocks = (length + block_size - 1) // block_size  # ONNX rounds a negative quotient up
    return torch.sym_max(blocks, 2) if torch.compiler.is_exporting() else blocks


def selected_block_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    chosen: Tensor,
    seen: Tensor,
    *,
    block_size: int,
    key_mask: Tensor | None = None,
    causal: bool = False,
    scale: float,
) -> Tensor:
    """Apply softmax attention of each query over the keys of the blocks that it chose.

    Pairs of a query and a block are sorted by block, so that the queries of a block meet its keys
    in dense products; each query then joins its blocks by their log-sum-exps.

    Args:
        q, k, v: (B, H, N, D). Keys g * S .. (g + 1) * S - 1 are block g; the last may be shorter.
        chosen: (B, H, N, T) blocks of each query, each once.
        seen: (B, H, N, T) bool, False for a choice that does not count.
        block_size: S.
        key_mask: (B, N), True at real tokens; None means all real.
        causal: A token attends to itself and tokens before it only.
        scale: Factor on the logits.

    Returns:
        (B, H, N, D), float32; 0 for a query without a key.

    Cost: O(N T S D) time, O(N T (S + D)) memory.
    """
    if torch.onnx.is_in_onnx_export():
        return _dense(q, k, v, chosen, seen, block_size, key_mask, causal, scale)
    batch, heads, length, width = q.shape
    choices = chosen.shape[-1]
    blocks = number_of_blocks(length, block_size)
    seen = seen if key_mask is None else seen & key_mask[:, None, :, None]
    block, real = chosen.reshape(batch * heads, -1), seen.reshape(batch * heads, -1)
    pairs = cluster_chunks(sort(block, blocks, real), GROUP, real, look_back=0)
    members = pairs.members  # (B * H, groups, P) pairs, of which query n has n * T .. n * T + T - 1
    owner = block.gather(1, members[..., 0])  # (B * H, groups)

    def of_pairs(x: Tensor) -> Tensor:
        rows = x.float().flatten(0, 1).repeat_interleave(choices, 1)
        return gather_own(rows, pairs)  # (B * H, groups, P, D)

    def of_blocks(x: Tensor) -> Tensor:
        tail = blocks * block_size - length
        rows = F.pad(x.float().flatten(0, 1), (0, 0, 0, tail)).reshape(-1, block_size * width)
        start = torch.arange(batch * heads, device=x.device)[:, None] * blocks
        picked = pick_rows(rows, (start + owner).flatten())
        return picked.view(*owner.shape, block_size, width)

    position = torch.arange(block_size, device=q.device) + owner[..., None] * block_size
    limit = (members // choices)[..., None] if causal else length - 1
    within = position[:, :, None] <= limit  # (B * H, groups, P or 1, S)
    if key_mask is not None:
        table = key_mask.repeat_interleave(heads, 0)
        held = table.gather(1, position.clamp(max=length - 1).flatten(1)).view_as(position)
        within = within & (held & (position < length))[:, :, None]
    logits = scale * of_pairs(q) @ of_blocks(k).transpose(2, 3)
    logits = logits.masked_fill(~within, NO_MASS)
    largest = logits.detach().amax(-1, keepdim=True)
    weights = (logits - largest).exp().masked_fill(~within, 0.0)
    mass = weights.sum(-1, keepdim=True)
    values = weights @ of_blocks(v)
    columns = torch.cat([values, mass, largest], -1)
    parts = resort(columns, pairs).unflatten(1, (length, choices))  # (B * H, N, T, D + 2)
    largest = parts[..., -1].masked_fill(~seen.flatten(0, 1), NO_MASS).detach()
    share = (largest - largest.amax(-1, keepdim=True)).exp()[..., None]
    total = (parts[..., :-1] * share).sum(2)
    return (total[..., :-1] / total[..., -1:].clamp(min=TINY)).unflatten(0, (batch, heads))


def _dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    chosen: Tensor,
    seen: Tensor,
    block_size: int,
    key_mask: Tensor | None,
    causal: bool,
    scale: float,
) -> Tensor:
    """Compute the same as one product under a mask: ONNX has no form of sorted pairs."""
    batch, heads, length, _ = q.shape
    blocks = (length + block_size - 1) // block_size
    met = torch.zeros(batch, heads, length, blocks + 1, dtype=torch.bool, device=q.device)
    met = met.scatter(3, chosen.masked_fill(~seen, blocks), True)
    position = torch.arange(length, device=q.device)
    mask = met.index_select(3, position // block_size)  # (B, H, N, N)
    if causal:
        mask = mask & (position <= position[:, None])
    if key_mask is not None:
        mask = mask & key_mask[:, None, None]
    logits = (scale * q.float() @ k.float().transpose(2, 3)).masked_fill(~mask, NO_MASS)
    weights = (logits - logits.amax(-1, keepdim=True)).exp().masked_fill(~mask, 0.0)
    return weights @ v.float() / weights.sum(-1, keepdim=True).clamp(min=TINY)


TINY = 1e-30
"""Least denominator: a query without a key gets 0."""
