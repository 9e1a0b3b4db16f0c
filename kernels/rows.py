"""Rows of tokens into their blocks and back, with gradients that gather too.

B batch   H heads   N tokens   D head width   A additional columns   F features (row width)
S block size   G blocks   J blocks that a block sees
"""

import torch
from torch import Tensor

from clusterformer.kernels.blocks import Blocks


def gather_rows(rows: Tensor, blocks: Blocks) -> Tensor:
    """Gather rows (B, N, F) into all slots, (B, G + J - 1, S, F)."""
    batch, entries, width = blocks.members.shape
    index = _flat_index(blocks.members.flatten(1), rows.shape[1]).flatten()
    source = _flat_index(blocks.copies, entries * width)
    source_has_gaps = blocks.padded or source.shape[1] > 1
    gathered = _Gather.apply(rows.flatten(0, 1), index, source, False, source_has_gaps)
    return gathered.view(batch, entries, width, rows.shape[-1])


def gather_own(rows: Tensor, blocks: Blocks) -> Tensor:
    """Gather rows (B, N, F) into the slots of the blocks themselves, (B, G, S, F)."""
    members, slot = _own_slots(blocks)
    batch, groups, width = members.shape
    index = _flat_index(members.flatten(1), rows.shape[1]).flatten()
    source = _flat_index(slot, groups * width)[:, None]
    gathered = _Gather.apply(rows.flatten(0, 1), index, source, False, blocks.padded)
    return gathered.view(batch, groups, width, rows.shape[-1])


def resort(blocked: Tensor, blocks: Blocks) -> Tensor:
    """Return rows (B, G, S, F) from slots to tokens, (B, N, F); 0 at padding (eq. 10)."""
    members, slot = _own_slots(blocks)
    batch, length = slot.shape
    index = _flat_index(slot, blocked.shape[1] * blocked.shape[2])
    members = members.masked_fill(~blocks.own_filled, -1)
    source = _flat_index(members.flatten(1), length).flatten()[:, None]
    rows = _Gather.apply(blocked.flatten(0, 2), index.flatten(), source, blocks.padded, True)
    return rows.view(batch, length, -1)


def repeat_rows(x: Tensor, count: int) -> Tensor:
    """Repeat each row of x (B, ...), giving (B * count, ...); ONNX has no repeat_interleave."""
    if count == 1:
        return x
    return x[:, None].expand(-1, count, *x.shape[1:]).flatten(0, 1)


def append_columns(heads: Tensor, columns: Tensor) -> Tensor:
    """Append columns (B, N, A), the same for all heads, to heads (B, H, N, D)."""
    columns = columns[:, None].expand(-1, heads.shape[1], -1, -1)
    return torch.cat([heads, columns.to(heads.dtype)], -1)


def pick_rows(table: Tensor, index: Tensor) -> Tensor:
    """Select rows of a table (rows, ...); the gradient has the same bits each time."""
    if table.device.type == "cpu":
        return table.float().index_select(0, index)  # in float32, as `chunk_attention` computes
    return table[index]  # the gradient of index_select adds in random order on CUDA


def sum_rows(count: int, index: Tensor, rows: Tensor) -> Tensor:
    """Sum rows (n, F) by index (n,) into (count, F); the result has the same bits each time."""
    total = rows.new_zeros(count, rows.shape[1])
    if rows.device.type == "cpu":
        return total.index_add(0, index, rows)
    return total.index_put((index,), rows, accumulate=True)  # index_add's order is random on CUDA


def pick_tokens(x: Tensor, index: Tensor) -> Tensor:
    """Select tokens of x (B, ..., N, F) at index (B, L), the same in all heads: (B, ..., L, F)."""
    index = index.view(index.shape[0], *[1] * (x.dim() - 3), index.shape[1], 1)
    return x.gather(-2, index.expand(*x.shape[:-2], -1, x.shape[-1]))


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Select rows of x (rows, ...) at an index of any shape, in float32."""
    return x.index_select(0, index.flatten()).float().unflatten(0, index.shape)


def add_rows(total: Tensor, index: Tensor, part: Tensor) -> None:
    """Add to rows of `total`, in place; index_add_ is fast in two contiguous dimensions."""
    total.flatten(1).index_add_(0, index.flatten(), part.reshape(index.numel(), -1))


def zero_rows(shape: torch.Size) -> Tensor:
    """Return zeros in fp32, whatever torch's default is, for sums to be added to."""
    return torch.zeros(shape, dtype=torch.float32)


def _own_slots(blocks: Blocks) -> tuple[Tensor, Tensor]:
    """Members (B, G, S) of the blocks themselves, and slots (B, N) among them."""
    skipped = blocks.look_back * blocks.members.shape[-1]
    slot = torch.where(blocks.slot < 0, blocks.slot, blocks.slot - skipped)
    return blocks.members[:, blocks.own], slot


def _flat_index(index: Tensor, size: int) -> Tensor:
    """Turn indices into each sequence to indices into all of them; negative ones stay."""
    start = torch.arange(index.shape[0], device=index.device) * size
    start = start.view(-1, *[1] * (index.dim() - 1))
    return torch.where(index < 0, index, index + start).flatten(0, 1)


class _Gather(torch.autograd.Function):
    """rows[index], whose gradient gathers too: deterministic and much faster than a scatter.

    `index` has the row of each output, negative for a row of zeros. `source` (rows, copies) has
    the outputs that came from each row, negative for none. The two flags tell whether `index` and
    `source` hold such negatives.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        rows: Tensor, index: Tensor, source: Tensor, index_has_gaps: bool, source_has_gaps: bool
    ) -> Tensor:
        return _select_rows(rows, index, index_has_gaps)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        _, _, source, _, ctx.source_has_gaps = inputs
        ctx.save_for_backward(source)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        (source,) = ctx.saved_tensors
        grad = grad.contiguous()
        total = _select_rows(grad, source[:, 0], ctx.source_has_gaps)
        for copy in range(1, source.shape[1]):
            total += _select_rows(grad, source[:, copy], ctx.source_has_gaps)
        return total, None, None, None, None


def _select_rows(rows: Tensor, index: Tensor, has_gaps: bool) -> Tensor:
    if not has_gaps:
        return rows.index_select(0, index)
    selected = rows.index_select(0, index.clamp(min=0))
    return selected.masked_fill_((index < 0)[:, None], 0.0)
