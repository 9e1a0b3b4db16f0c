"""Every operation of clustered attention in plain PyTorch: the specification of the kernels.

B batch   H heads   N tokens   D head width   P point width   C clusters
G blocks  S slots a block (block width)   R blocks that a block sees   T = B * N

The road is assign -> sort -> chunk -> attend -> resort. Sorting and chunking give only indices
(`Blocks`); rows move once, into the blocks, and once back.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Sorted(NamedTuple):
    """Tokens in the order of their clusters.

    Attributes:
        order: (B, N) token at each place; padding last.
        inverse: (B, N) place of each token.
        counts: (B, C) real tokens of each cluster.
    """

    order: Tensor
    inverse: Tensor
    counts: Tensor


class Blocks(NamedTuple):
    """Which token stands in which slot, and which blocks a block sees.

    Attributes:
        members: (B, G, S) token in each slot; 0 where the slot is empty.
        filled: (B, G, S) bool, True where a slot holds a token.
        slot: (B, N) flat slot (block * S + place) of each token; -1 at padding.
        neighbours: (B, G, R) blocks whose keys a block sees.
        visible: (B, G, R) bool, False where the entry of `neighbours` is void.
        seen_by: (B, G, R) the inverse of `neighbours`: entry r of block `seen_by[g, r]` is g;
            -1 where no block has g there.
        padded: True if some token is padding.
    """

    members: Tensor
    filled: Tensor
    slot: Tensor
    neighbours: Tensor
    visible: Tensor
    seen_by: Tensor
    padded: bool


class Assigned(NamedTuple):
    """Attributes: assignment (B, N) integer; memberships (B, C, N), eq. 2 (0 at padding)."""

    assignment: Tensor
    memberships: Tensor


def assign(similarity: Tensor, key_mask: Tensor | None = None) -> Assigned:
    """Membership of tokens in clusters, normalised over tokens (ClusterFormer, eq. 2 and 4).

    U_ij = exp(S_ij - logsumexp_j' S_ij');  I_j = argmax_i U_ij.

    Args:
        similarity: S, (B, C, N).
        key_mask: (B, N), True at real tokens; None means all real.

    Returns:
        The assignment and the memberships, in float32.

    Cost: O(N C) time and memory.
    """
    scores = similarity.float()
    if key_mask is not None:
        scores = scores.masked_fill(~key_mask[:, None], torch.finfo(scores.dtype).min)
    memberships = scores.log_softmax(-1)
    assignment = memberships.detach().argmax(1)
    memberships = memberships.exp()
    if key_mask is not None:
        memberships = memberships.masked_fill(~key_mask[:, None], 0.0)
    return Assigned(assignment, memberships)


def sort(assignment: Tensor, num_clusters: int, key_mask: Tensor | None = None) -> Sorted:
    """Stable sort of tokens by cluster, padding behind all clusters (eq. 5).

    Args:
        assignment: (B, N) integers in 0..C-1.
        num_clusters: C.
        key_mask: (B, N), True at real tokens; None means all real.
    """
    batch, length = assignment.shape
    if key_mask is not None:
        assignment = assignment.masked_fill(~key_mask, num_clusters)
    order = assignment.sort(dim=-1, stable=True).indices
    places = torch.arange(length, device=order.device).expand(batch, length)
    inverse = torch.empty_like(order).scatter_(1, order, places)
    counts = order.new_zeros(batch, num_clusters + 1)
    counts = counts.scatter_add(1, assignment, torch.ones_like(assignment))
    return Sorted(order, inverse, counts[:, :num_clusters])


def equal_blocks(
    grouped: Sorted,
    num_blocks: int,
    key_mask: Tensor | None = None,
    look_back: int = 1,
    look_ahead: int = 0,
) -> Blocks:
    """Chunk sorted tokens into blocks of equal width, seen around a circle (eq. 8).

    The width is ceil(n / num_blocks) of the n real tokens of each sequence on its own. The circle
    runs over blocks that hold tokens, and a block that it reaches twice counts once.

    Args:
        grouped: Tokens in sorted order.
        num_blocks: G, the paper's k. One block is full attention.
        key_mask: (B, N), True at real tokens; None means all real.
        look_back: Blocks seen before the own one (1 in the paper).
        look_ahead: Blocks seen after it (0 in the paper).
    """
    order, inverse, _ = grouped
    batch, length = order.shape
    width = -(-length // num_blocks)
    block = torch.arange(num_blocks, device=order.device)
    place = torch.arange(width, device=order.device)
    offsets = torch.arange(-look_back, look_ahead + 1, device=order.device)
    if key_mask is None:
        lengths = torch.full((batch, 1, 1), length, device=order.device)
    else:
        lengths = key_mask.sum(-1)[:, None, None]
    widths = (lengths + num_blocks - 1).div(num_blocks, rounding_mode="floor").clamp(min=1)
    places = block[:, None] * widths + place  # (B, G, S)
    filled = (place < widths) & (places < lengths)
    members = order.gather(1, places.clamp(max=length - 1).flatten(1)).view(places.shape)
    members = members.masked_fill(~filled, 0)

    widths, lengths = widths[:, 0], lengths[:, 0]  # (B, 1)
    slot = inverse.div(widths, rounding_mode="floor") * width + inverse % widths
    if key_mask is not None:
        slot = slot.masked_fill(~key_mask, -1)

    used = (lengths + widths - 1).div(widths, rounding_mode="floor").clamp(min=1)[:, :, None]
    block = block[:, None]
    inside = block < used  # (B, G, 1)
    neighbours = torch.where(inside, (block + offsets) % used, block)
    once = (torch.arange(offsets.numel(), device=order.device) < used).expand_as(neighbours)
    seen_by = torch.where(once & inside, (block - offsets) % used, -1)
    return Blocks(members, filled, slot, neighbours, once, seen_by, key_mask is not None)


def cluster_chunks(
    grouped: Sorted, chunk_size: int, key_mask: Tensor | None = None, look_back: int = 1
) -> Blocks:
    """Chunk each cluster on its own, so that a chunk is known as soon as its tokens are.

    A token of rank r within its cluster stands in that cluster's chunk r // chunk_size and sees
    its own and the `look_back` chunks before it OF ITS CLUSTER. No later token moves it.

    Args:
        grouped: Tokens in sorted order.
        chunk_size: S, tokens a chunk.
        key_mask: (B, N), True at real tokens; None means all real.
        look_back: Chunks seen before the own one.
    """
    order, inverse, counts = grouped
    batch, length = order.shape
    clusters = counts.shape[1]
    # At most floor((N + C (S - 1)) / S) chunks, however the tokens fall; N of them at S = 1.
    blocks = (length + clusters * (chunk_size - 1)) // chunk_size
    chunks = (counts + chunk_size - 1).div(chunk_size, rounding_mode="floor")  # (B, C)
    chunk_end, token_end = chunks.cumsum(1), counts.cumsum(1)
    chunk_start, token_start = chunk_end - chunks, token_end - counts

    block = torch.arange(blocks, device=order.device)[:, None]  # (G, 1)
    owner = torch.searchsorted(
        chunk_end, block.flatten().expand(batch, -1).contiguous(), right=True
    ).clamp(max=clusters - 1)  # (B, G)
    first = token_start.gather(1, owner)[..., None]
    within = block - chunk_start.gather(1, owner)[..., None]  # (B, G, 1) chunk of its cluster
    rank = within * chunk_size + torch.arange(chunk_size, device=order.device)
    filled = rank < counts.gather(1, owner)[..., None]
    members = order.gather(1, (first + rank).clamp(max=length - 1).flatten(1)).view(rank.shape)
    members = members.masked_fill(~filled, 0)

    cluster = torch.searchsorted(token_end, inverse.contiguous(), right=True).clamp(
        max=clusters - 1
    )
    rank = inverse - token_start.gather(1, cluster)
    slot = chunk_start.gather(1, cluster) * chunk_size + rank
    if key_mask is not None:
        slot = slot.masked_fill(~key_mask, -1)

    offsets = torch.arange(-look_back, 1, device=order.device)
    live = filled[..., :1]
    visible = (within + offsets >= 0) & (live | (offsets == 0))
    neighbours = torch.where(visible, block + offsets, block)
    last = chunks.gather(1, owner)[..., None] - 1
    seen_by = torch.where(live & (within - offsets <= last), block - offsets, -1)
    return Blocks(members, filled, slot, neighbours, visible, seen_by, key_mask is not None)


def window_blocks(
    length: int, batch: int, window: int, key_mask: Tensor | None = None, *, device: torch.device
) -> Blocks:
    """Chunks of neighbouring tokens, each seeing itself and the one before: a local window.

    A token sees between `window` and 2 * `window` - 1 tokens up to itself, less near the start.
    """
    tokens = torch.arange(length, device=device).expand(batch, length)
    if key_mask is not None:
        order = (~key_mask).long().sort(dim=-1, stable=True).indices
        inverse = torch.empty_like(order).scatter_(1, order, tokens)
        counts = key_mask.sum(-1, keepdim=True)
    else:
        order = inverse = tokens
        counts = torch.full((batch, 1), length, device=device)
    return cluster_chunks(Sorted(order, inverse, counts), window, key_mask, look_back=1)


def gather_rows(rows: Tensor, blocks: Blocks) -> Tensor:
    """Rows (B, N, F) into their slots, (B, G, S, F). The gradient is a gather, not a scatter."""
    batch, groups, width = blocks.members.shape
    index = _flat(blocks.members, rows.shape[1])
    source = _flat(blocks.slot, groups * width)[..., None]
    rows = rows.reshape(-1, rows.shape[-1])
    gathered = _Gather.apply(rows, index.flatten(), source, False, blocks.padded)
    return gathered.view(batch, groups, width, -1)


def gather_windows(rows: Tensor, blocks: Blocks) -> Tensor:
    """Rows (B, N, F) of all blocks that a block sees, (B, G, R * S, F)."""
    batch, groups, width = blocks.members.shape
    reach = blocks.neighbours.shape[-1]
    members = blocks.members.gather(
        1, blocks.neighbours.flatten(1)[..., None].expand(-1, -1, width)
    )  # (B, G * R, S)
    index = _flat(members, rows.shape[1])
    # Token in place s of block b stands in window g = seen_by[b, r], entry r, place s.
    block, place = blocks.slot.div(width, rounding_mode="floor"), blocks.slot % width
    viewer = blocks.seen_by.gather(1, block.clamp(min=0)[..., None].expand(-1, -1, reach))
    entry = torch.arange(reach, device=rows.device)
    source = (viewer * reach + entry) * width + place[..., None]  # (B, N, R)
    source = source.masked_fill((viewer < 0) | (block < 0)[..., None], -1)
    source = _flat(source, groups * reach * width)
    rows = rows.reshape(-1, rows.shape[-1])
    gathered = _Gather.apply(rows, index.flatten(), source, False, True)
    return gathered.view(batch, groups, reach * width, -1)


def resort(blocked: Tensor, blocks: Blocks) -> Tensor:
    """Rows in their slots, (B, G, S, F), back to their tokens, (B, N, F); 0 at padding (eq. 10)."""
    batch, groups, width = blocks.members.shape
    index = _flat(blocks.slot, groups * width).flatten()
    members = blocks.members.masked_fill(~blocks.filled, -1)
    source = _flat(members.flatten(1), blocks.slot.shape[1])[..., None]
    blocked = blocked.reshape(-1, blocked.shape[-1])
    rows = _Gather.apply(blocked, index, source, blocks.padded, True)
    return rows.view(batch, blocks.slot.shape[1], -1)


def window_mask(blocks: Blocks, causal: bool = False) -> Tensor:
    """Which slots of its window a slot may attend to: (B, G, 1, R * S), causal (B, G, S, R * S).

    A slot without a token sees everything, so that no row is empty; nothing reads it.
    """
    batch, groups, width = blocks.members.shape
    index = blocks.neighbours.flatten(1)[..., None].expand(-1, -1, width)
    keys = blocks.filled.gather(1, index).view(batch, groups, -1, width)
    keys = (keys & blocks.visible[..., None]).view(batch, groups, 1, -1)
    if causal:
        positions = blocks.members.gather(1, index).view(batch, groups, 1, -1)
        keys = keys & (positions <= blocks.members[..., None])
        return keys | ~blocks.filled[..., None]
    return keys | ~blocks.filled.any(-1)[..., None, None]


def chunk_attention(
    q: Tensor, k: Tensor, v: Tensor, blocks: Blocks, *, causal: bool = False, scale: float
) -> Tensor:
    """Softmax attention of each block over the blocks that it sees (eq. 8-10, 12-14).

    Args:
        q, k: (B, H, N, D). The logits are scale * q . k.
        v: (B, H, N, D') with D' <= D.
        blocks: From `equal_blocks`, `cluster_chunks` or `window_blocks`.
        causal: A token attends to itself and tokens before it only, by -inf (not by eq. 14's
            multiplication, under which a masked key still takes weight).
        scale: Factor on the logits.

    Returns:
        (B, H, N, D') in the dtype of q; 0 at padding.

    Cost: O(N R S D) time; O(N R D) memory for the windows of k and v.
    """
    heads, out_width = q.shape[1], v.shape[-1]
    if out_width < q.shape[-1]:
        # Flash attention on CPU wants one width for all three; zeros cost less than its fallback.
        v = F.pad(v, (0, q.shape[-1] - out_width))
    blocked = [gather_rows(_rows(q), blocks)]
    blocked += [gather_windows(_rows(x), blocks) for x in (k, v)]
    query, key, value = (
        x.flatten(0, 1).unflatten(-1, (heads, -1)).transpose(1, 2) for x in blocked
    )  # (B * G, H, S or R * S, D)
    mask = window_mask(blocks, causal).flatten(0, 1)[:, None]
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    out = out.transpose(1, 2).flatten(2).unflatten(0, blocks.members.shape[:2])
    out = resort(out, blocks).unflatten(-1, (heads, -1)).transpose(1, 2)
    return out[..., :out_width]


def _rows(x: Tensor) -> Tensor:
    """(B, H, N, D) to (B, N, H * D), free where the heads were split off a projection."""
    return x.transpose(1, 2).flatten(2)


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
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def, override]
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
