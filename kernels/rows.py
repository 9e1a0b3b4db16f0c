"""Rows of tokens into their blocks and back, with gradients that gather too.

B batch   N tokens   F row width   G blocks   S slots a block   R blocks that a block sees
L = G + R - 1 places
"""

import torch
from torch import Tensor

from clusterformer.kernels.blocks import Blocks


def gather_rows(rows: Tensor, blocks: Blocks) -> Tensor:
    """Rows (B, N, F) into all slots, (B, L, S, F). The gradient is a gather, not a scatter."""
    batch, places, width = blocks.members.shape
    index = _flat(blocks.members.flatten(1), rows.shape[1]).flatten()
    source = _flat(blocks.copies, places * width)
    holes = blocks.padded or source.shape[1] > 1
    gathered = _Gather.apply(rows.flatten(0, 1), index, source, False, holes)
    return gathered.view(batch, places, width, rows.shape[-1])


def gather_own(rows: Tensor, blocks: Blocks) -> Tensor:
    """Rows (B, N, F) into the slots of the blocks themselves, (B, G, S, F)."""
    members, slot = _own(blocks)
    batch, groups, width = members.shape
    index = _flat(members.flatten(1), rows.shape[1]).flatten()
    source = _flat(slot, groups * width)[:, None]
    gathered = _Gather.apply(rows.flatten(0, 1), index, source, False, blocks.padded)
    return gathered.view(batch, groups, width, rows.shape[-1])


def resort(blocked: Tensor, blocks: Blocks) -> Tensor:
    """Rows in their slots, (B, G, S, F), back to their tokens, (B, N, F); 0 at padding (eq. 10)."""
    members, slot = _own(blocks)
    batch, length = slot.shape
    index = _flat(slot, blocked.shape[1] * blocked.shape[2])
    members = members.masked_fill(~blocks.own_filled, -1)
    source = _flat(members.flatten(1), length).flatten()[:, None]
    flat = blocked.flatten(0, 2)
    return _Gather.apply(flat, index.flatten(), source, blocks.padded, True).view(batch, length, -1)


def _own(blocks: Blocks) -> tuple[Tensor, Tensor]:
    """Members (B, G, S) of the blocks themselves, and slots (B, N) among them."""
    skipped = blocks.back * blocks.members.shape[-1]
    slot = torch.where(blocks.slot < 0, blocks.slot, blocks.slot - skipped)
    return blocks.members[:, blocks.own], slot


def _flat(index: Tensor, size: int) -> Tensor:
    """Indices into each sequence to indices into all of them on end; negative ones stay so."""
    start = torch.arange(index.shape[0], device=index.device) * size
    start = start.view(-1, *[1] * (index.dim() - 1))
    return torch.where(index < 0, index, index + start).flatten(0, 1)


class _Gather(torch.autograd.Function):
    """rows[index], whose gradient gathers too: deterministic and much faster than a scatter.

    index: (K,) row of each output, negative for a row of zeros; source: (T, R) outputs that came
    from each row, negative for none. The two flags say whether there are such negatives.
    """

    @staticmethod
    def forward(rows: Tensor, index: Tensor, source: Tensor, void: bool, orphans: bool) -> Tensor:
        return _take(rows, index, void)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        _, _, source, _, ctx.orphans = inputs
        ctx.save_for_backward(source)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        (source,) = ctx.saved_tensors
        grad = grad.contiguous()
        total = _take(grad, source[:, 0], ctx.orphans)
        for copy in range(1, source.shape[1]):
            total += _take(grad, source[:, copy], ctx.orphans)
        return total, None, None, None, None


def _take(rows: Tensor, index: Tensor, void: bool) -> Tensor:
    if not void:
        return rows.index_select(0, index)
    taken = rows.index_select(0, index.clamp(min=0))
    return taken.masked_fill_((index < 0)[:, None], 0.0)
