"""Ways to cut tokens into blocks: equally wide, of each cluster, of neighbours, one for all.

B batch   N tokens   C clusters   S block size (slots)   G blocks (segments of the sorted tokens)
J blocks that a block sees

The order of work is assign -> sort -> chunk -> attend -> resort. Sorting and chunking give only
indices; rows move once, into the blocks, and once back.
"""

from types import ModuleType

import torch
from torch import Tensor

from clusterformer.kernels import _chunking_torch
from clusterformer.kernels.blocks import Blocks, Sorted
from clusterformer.kernels.dispatch import use_triton
from clusterformer.kernels.grouping import sort


def equal_blocks(
    grouped: Sorted,
    num_blocks: int,
    key_mask: Tensor | None = None,
    look_back: int = 1,
    look_ahead: int = 0,
    min_width: int = 1,
) -> Blocks:
    """Chunk sorted tokens into blocks of equal width, seen around a circle (eq. 8).

    The width is ceil(n / num_blocks) of the n real tokens of each sequence, but at least
    `min_width`. The circle runs over blocks that hold tokens, and a block that it reaches twice
    counts once.

    Args:
        grouped: Tokens in sorted order.
        num_blocks: G, the paper's k. One block is full attention.
        key_mask: (B, N), True at real tokens; None means all real.
        look_back: Number of blocks seen before the own one (1 in the paper).
        look_ahead: Number of blocks seen after it (0 in the paper).
        min_width: Minimum number of tokens in a block, except the last one (1 in the paper).
    """
    batch, length = grouped.order.shape
    max_blocks, exporting = num_blocks, torch.compiler.is_exporting()
    if not exporting:
        min_width = min(min_width, length)
        width = max(-(-length // num_blocks), min_width)
        num_blocks = min(num_blocks, -(-length // min_width))
    # An exported graph is for any length: it has no special case for one block or one slot.
    elif not _is_symbolic(num_blocks):
        width = torch.sym_max((length + num_blocks - 1) // num_blocks, max(min_width, 2))
    else:  # as many as tokens
        spare = max(1, look_back + look_ahead)  # no fewer blocks than a window has
        width, num_blocks = max(min_width, 2), (length + min_width - 1) // min_width + spare
    device = grouped.order.device
    if key_mask is None:
        lengths = torch.full((batch, 1), length, device=device)
    else:
        lengths = key_mask.sum(-1, keepdim=True)
    sizes = num_blocks, width, max_blocks, min_width, look_back, look_ahead
    members, filled, copies, visible = _cuts(device).circle(*grouped[:2], lengths, key_mask, *sizes)
    slot, padded = copies[..., 0], key_mask is not None
    guarded = exporting and _is_symbolic(num_blocks)
    whole = not guarded and num_blocks <= look_back + 1 + look_ahead
    return Blocks(members, filled, slot, copies, visible, look_back, padded, whole, whole)


def cluster_chunks(
    grouped: Sorted,
    chunk_size: int,
    key_mask: Tensor | None = None,
    look_back: int = 1,
    look_ahead: int = 0,
) -> Blocks:
    """Chunk each cluster separately, so that a chunk is known as soon as its tokens are.

    A token of rank r within its cluster stands in that cluster's chunk r // chunk_size. It sees
    its own chunk and the `look_back` chunks before it OF ITS CLUSTER. No later token moves it.

    Args:
        grouped: Tokens in sorted order.
        chunk_size: S, tokens per chunk.
        key_mask: (B, N), True at real tokens; None means all real.
        look_back: Number of chunks seen before the own one.
        look_ahead: Number of chunks seen after it; then a later token does change what is seen.
    """
    length, clusters, device = grouped.order.shape[1], grouped.counts.shape[1], grouped.order.device
    exporting, short = torch.compiler.is_exporting(), False
    if not exporting:
        short = length <= (look_back + 1 + look_ahead) * chunk_size
        chunk_size = min(chunk_size, length)  # a text shorter than a chunk pays for its tokens
    # At most floor((N + C (S - 1)) / S) chunks, however the tokens fall.
    blocks = (length + clusters * (chunk_size - 1)) // chunk_size
    sizes = blocks, chunk_size, look_back, look_ahead
    members, filled, copies, visible = _cuts(device).chunks(*grouped, key_mask, *sizes)
    return Blocks(
        members, filled, copies[..., 0], copies, visible, look_back, key_mask is not None,
        short=short, grouped=grouped,
    )  # fmt: skip


def window_blocks(
    length: int,
    batch: int,
    width: int,
    key_mask: Tensor | None = None,
    *,
    device: torch.device,
    look_back: int = 1,
    look_ahead: int = 0,
) -> Blocks:
    """Chunk neighbouring tokens, in a row that is no circle: a local window.

    Looking back once and causal, a token sees between `width` and 2 * `width` - 1 tokens up to
    itself, less near the start; `window_mask` can draw the border at an exact distance.

    Args:
        length: N.
        batch: B.
        width: S, tokens per block.
        key_mask: (B, N), True at real tokens; None means all real.
        device: Device of the indices.
        look_back: Number of blocks seen before the own one.
        look_ahead: Number of blocks seen after it.

    A text of one block is a `single_block`, except in an exported graph, which is for any length.
    """
    exporting = torch.compiler.is_exporting()
    if not exporting and length <= width:
        return single_block(length, batch, key_mask, device=device)
    if key_mask is None:
        order = torch.arange(length, device=device).expand(batch, length)
        grouped = Sorted(order, order, torch.full((batch, 1), length, device=device))
    else:
        grouped = sort(torch.zeros_like(key_mask, dtype=torch.long), 1, key_mask)  # padding last
    blocks = (length + width - 1) // width  # ONNX rounds a negative quotient up
    if exporting:
        blocks = torch.sym_max(blocks, 2)  # of one block the strides would be a guard
    sizes = blocks, width, look_back, look_ahead
    members, filled, copies, visible = _cuts(device).row(*grouped, key_mask, *sizes)
    short = not exporting and length <= (look_back + look_ahead + 1) * width
    padded = key_mask is not None
    return Blocks(members, filled, copies[..., 0], copies, visible, look_back, padded, short=short)


def capped_blocks(grouped: Sorted, capacity: int, key_mask: Tensor | None = None) -> Blocks:
    """Give each cluster one block of `capacity` slots; no cluster may have more tokens.

    Args:
        grouped: Tokens in sorted order.
        capacity: S.
        key_mask: (B, N), True at real tokens; None means all real.
    """
    order, inverse, counts = grouped
    start = counts.cumsum(1) - counts
    rank = torch.arange(capacity, device=order.device)
    filled = rank < counts[..., None]  # (B, C, S)
    position = (start[..., None] + rank).clamp(max=order.shape[1] - 1)
    members = order.gather(1, position.flatten(1)).view(position.shape).masked_fill(~filled, 0)
    cluster = _chunking_torch.cluster_of_each(inverse, counts)
    slot = cluster * capacity + inverse - start.gather(1, cluster)
    if key_mask is not None:
        slot = slot.masked_fill(~key_mask, -1)
    visible = filled.any(-1, keepdim=True)
    return Blocks(members, filled, slot, slot[..., None], visible, 0, key_mask is not None)


def single_block(
    length: int, batch: int, key_mask: Tensor | None = None, *, device: torch.device
) -> Blocks:
    """Put each sequence into one block, in which every token sees every other.

    Args:
        length: N.
        batch: B.
        key_mask: (B, N), True at real tokens; None means all real.
        device: Device of the indices.
    """
    slot = torch.arange(length, device=device).expand(batch, length)
    filled = torch.ones_like(slot, dtype=torch.bool) if key_mask is None else key_mask
    own = slot.masked_fill(~filled, -1)
    live = filled.any(-1)[:, None, None]
    return Blocks(
        slot[:, None], filled[:, None], own, own[..., None], live,
        look_back=0, padded=key_mask is not None, whole=True, short=True,
    )  # fmt: skip


def _cuts(device: torch.device) -> ModuleType:
    """Return the module that cuts: in Triton on a GPU, but not in an exported graph."""
    if torch.compiler.is_exporting() or not use_triton(device):
        return _chunking_torch
    from clusterformer.kernels import _chunking_triton

    return _chunking_triton


def _is_symbolic(number: object) -> bool:
    """Tell whether a number stands for any length in an exported graph: torch's SymInt."""
    return not isinstance(number, int)
