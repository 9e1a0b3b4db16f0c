"""Every operation of clustered attention in plain PyTorch: the specification of the kernels.

B batch   H heads   N tokens   D head width   F row width   C clusters
G blocks  S slots a block (block width)   R blocks that a block sees   L = G + R - 1 places

The road is assign -> sort -> chunk -> attend -> resort. Sorting and chunking give only indices
(`Blocks`); rows move once, into the blocks, and once back.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

LATER = 1.2
"""In rounds after the first, a token's logit with itself is lower by this factor of `itself`: as a
last resort it then counts once. Reformer's -5e4 and this much of it are numbers of float16."""


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

    G blocks lie on L = G + R - 1 places in a row, so that what block g sees lies on the places
    g .. g + R - 1, its own being place g + back. Where the row is a circle, its first and last
    places repeat blocks of the other end.

    Attributes:
        members: (B, L, S) token in each slot; 0 where the slot is empty.
        filled: (B, L, S) bool, True where a slot holds a token.
        slot: (B, N) flat slot (place * S + rank) of each token; -1 at padding.
        copies: (B, N, K) all flat slots that hold a token; -1 for none.
        visible: (B, G, R) bool, False where a block does not see what lies there; all False
            for a block without a token.
        back: Blocks seen before the own one.
        padded: True if some token may be padding.
        whole: True if every token sees all of its sequence: the circle is no longer than a window.
    """

    members: Tensor
    filled: Tensor
    slot: Tensor
    copies: Tensor
    visible: Tensor
    back: int
    padded: bool
    whole: bool = False

    @property
    def own(self) -> slice:
        """Places of the G blocks themselves."""
        return slice(self.back, self.back + self.visible.shape[1])

    @property
    def own_filled(self) -> Tensor:
        """`filled` of the blocks themselves, without repetitions, (B, G, S)."""
        return self.filled[:, self.own] & self.visible.any(-1, keepdim=True)


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
    assignment = place_of_largest(memberships.detach(), 1)
    memberships = memberships.exp()
    if key_mask is not None:
        memberships = memberships.masked_fill(~key_mask[:, None], 0.0)
    return Assigned(assignment, memberships)


def place_of_largest(values: Tensor, dim: int) -> Tensor:
    """The argmax over one dimension, the first of equals.

    By two maxima, which together are faster than one argmax, the more so in small integers.
    """
    last = values.shape[dim] - 1
    dtype = torch.int16 if last < 2**15 else torch.int32
    shape = [1] * values.dim()
    shape[dim] = -1
    backwards = torch.arange(last, -1, -1, dtype=dtype, device=values.device).view(shape)
    largest = values == values.amax(dim, keepdim=True)
    return last - (largest * backwards).amax(dim).long()


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
    min_width: int = 1,
) -> Blocks:
    """Chunk sorted tokens into blocks of equal width, seen around a circle (eq. 8).

    The width is ceil(n / num_blocks) of the n real tokens of each sequence on its own, but at
    least `min_width`. The circle runs over blocks that hold tokens, and a block that it reaches
    twice counts once.

    Args:
        grouped: Tokens in sorted order.
        num_blocks: G, the paper's k. One block is full attention.
        key_mask: (B, N), True at real tokens; None means all real.
        look_back: Blocks seen before the own one (1 in the paper).
        look_ahead: Blocks seen after it (0 in the paper).
        min_width: Fewest tokens a block, the last one apart (1 in the paper).
    """
    order, inverse, _ = grouped
    batch, length = order.shape
    width = max(-(-length // num_blocks), min_width)
    most_blocks, num_blocks = num_blocks, min(num_blocks, -(-length // min_width))
    device = order.device
    if key_mask is None:
        lengths = torch.full((batch, 1), length, device=device)
    else:
        lengths = key_mask.sum(-1, keepdim=True)
    widths = _ceil_div(lengths, most_blocks).clamp(min=min_width)
    used = _ceil_div(lengths, widths).clamp(min=1)  # (B, 1) blocks that hold tokens

    place = torch.arange(num_blocks + look_back + look_ahead, device=device)
    block = place - look_back
    held = (block < used + look_ahead) & (block >= -used)  # once around the circle
    rank = torch.arange(width, device=device)
    position = (block % used * widths)[..., None] + rank  # (B, L, S)
    filled = held[..., None] & (rank < widths[..., None]) & (position < lengths[..., None])
    members = order.gather(1, position.clamp(max=length - 1).flatten(1)).view(position.shape)
    members = members.masked_fill(~filled, 0)

    home, rank = inverse.div(widths, rounding_mode="floor"), inverse % widths
    turns = torch.tensor([0, -1, 1], device=device) * used  # (B, 3)
    places = (home + look_back)[..., None] + turns[:, None]  # (B, N, 3)
    there = (places >= 0) & (places < used[..., None] + look_back + look_ahead)
    copies = (places * width + rank[..., None]).masked_fill(~there, -1)
    if key_mask is not None:
        copies = copies.masked_fill(~key_mask[..., None], -1)

    # A circle of fewer blocks than a window: each once, the own one among them.
    before = (used - 1).clamp(max=look_back)
    after = (used - 1 - before).clamp(max=look_ahead)
    offset = torch.arange(-look_back, look_ahead + 1, device=device)
    inside = torch.arange(num_blocks, device=device) < used  # (B, G)
    visible = inside[..., None] & ((offset >= -before) & (offset <= after))[:, None]
    slot, padded = copies[..., 0], key_mask is not None
    whole = num_blocks <= look_back + 1 + look_ahead
    return Blocks(members, filled, slot, copies, visible, look_back, padded, whole)


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
    device = order.device
    # At most floor((N + C (S - 1)) / S) chunks, however the tokens fall.
    blocks = (length + clusters * (chunk_size - 1)) // chunk_size
    chunks = _ceil_div(counts, chunk_size)  # (B, C)
    chunk_end, token_end = chunks.cumsum(1), counts.cumsum(1)
    chunk_start, token_start = chunk_end - chunks, token_end - counts

    block = torch.arange(-look_back, blocks, device=device).expand(batch, -1).contiguous()
    owner = torch.searchsorted(chunk_end, block, right=True).clamp(max=clusters - 1)  # (B, L)
    within = block - chunk_start.gather(1, owner)  # chunk of its cluster; negative before all
    rank = within[..., None] * chunk_size + torch.arange(chunk_size, device=device)
    filled = (rank >= 0) & (rank < counts.gather(1, owner)[..., None])
    position = (token_start.gather(1, owner)[..., None] + rank).clamp(0, length - 1)
    members = order.gather(1, position.flatten(1)).view(rank.shape).masked_fill(~filled, 0)

    cluster = torch.searchsorted(token_end, inverse.contiguous(), right=True)
    cluster = cluster.clamp(max=clusters - 1)
    rank = inverse - token_start.gather(1, cluster)
    slot = (chunk_start.gather(1, cluster) + look_back) * chunk_size + rank
    if key_mask is not None:
        slot = slot.masked_fill(~key_mask, -1)

    offset = torch.arange(-look_back, 1, device=device)
    live = filled[:, look_back:].any(-1, keepdim=True)  # (B, G, 1)
    visible = live & (within[:, look_back:, None] + offset >= 0)
    return Blocks(members, filled, slot, slot[..., None], visible, look_back, key_mask is not None)


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
    """Chunks of `width` neighbouring tokens in a row that is no circle: a local window.

    Looking back once and causal, a token sees between `width` and 2 * `width` - 1 tokens up to
    itself, less near the start; `window_mask` can draw the border at an exact distance.
    """
    order = torch.arange(length, device=device).expand(batch, length)
    inverse, lengths = order, torch.full((batch, 1), length, device=device)
    if key_mask is not None:
        order, inverse, lengths = sort(torch.zeros_like(order), 1, key_mask)
    groups = -(-length // width)
    block = torch.arange(-look_back, groups + look_ahead, device=device)
    position = block[:, None] * width + torch.arange(width, device=device)  # (L, S)
    filled = (position >= 0) & (position < lengths[..., None])
    members = order[:, position.clamp(0, length - 1).flatten()].view(batch, *position.shape)
    slot = inverse + look_back * width
    if key_mask is not None:
        slot = slot.masked_fill(~key_mask, -1)
    used = filled.any(-1)
    visible = used.unfold(1, look_back + look_ahead + 1, 1)  # (B, G, R)
    visible = visible & visible[..., look_back, None]
    members = members.masked_fill(~filled, 0)
    return Blocks(members, filled, slot, slot[..., None], visible, look_back, key_mask is not None)


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


def windows(x: Tensor, reach: int) -> Tensor:
    """What lies before each block: (B, L, S, ...) -> (B, G, R * S, ...), G = L - R + 1."""
    seen = x.unfold(1, reach, 1)  # (B, G, S, ..., R)
    return seen.movedim(-1, 2).flatten(2, 3)


def window_mask(blocks: Blocks, causal: bool = False, within: int | None = None) -> Tensor:
    """Which slots of its window a slot may attend to, (B, G, S, R * S).

    The same for all slots of a block, (B, G, 1, R * S), if neither causal nor `within` a distance.
    A slot without a token sees everything, so that no row is empty; nothing reads it.

    Args:
        blocks: Which token stands where and sees what.
        causal: A token attends to itself and tokens before it only.
        within: A token attends only to slots fewer than this away from its own.
    """
    reach = blocks.visible.shape[-1]
    width = blocks.members.shape[-1]
    seen = windows(blocks.filled, reach) & blocks.visible.repeat_interleave(width, -1)
    own = blocks.own_filled
    if not causal and within is None:
        return (seen | ~own.any(-1, keepdim=True))[:, :, None]
    seen = seen[:, :, None]
    if causal:
        keys, queries = windows(blocks.members, reach), blocks.members[:, blocks.own]
        seen = seen & (keys[:, :, None] <= queries[..., None])
    if within is not None:
        slots = torch.arange(reach * width, device=seen.device)
        distance = slots - slots[blocks.back * width :][:width, None]
        seen = seen & (distance.abs() < within)
    return seen | ~own[..., None]


def chunk_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Blocks,
    *,
    mask: Tensor,
    scale: float,
    itself: float,
    extra: tuple[Tensor, Tensor],
) -> Tensor:
    """Softmax attention of each block over the blocks that it sees.

    Args:
        q, k, v: (B, H, N, D). The logits are scale * q . k.
        blocks: Which token stands where and sees what: of each sequence (B, ...), of each head
            (B * H, ...), or of each head in several rounds (rounds * B * H, ...), whose softmax
            is one over all that a token sees in any round.
        mask: Which slots of its window a slot may attend to, as from `window_mask`.
        scale: Factor on the logits.
        itself: Added to the logit of a token with itself; `LATER` times that in later rounds.
        extra: Further columns of q and of k, (B, N, P) each, the same for all heads; P may be 0.

    Returns:
        (B, H, N, D); 0 at padding.
    """
    batch, heads = q.shape[:2]
    if blocks.members.shape[0] == batch:
        return _attend(q, k, v, blocks, mask, scale, itself, extra, batch)[0]
    rounds = blocks.members.shape[0] // (batch * heads)
    q, k, v = (x.flatten(0, 1)[:, None].repeat(rounds, 1, 1, 1) for x in (q, k, v))
    columns = tuple(x.repeat_interleave(heads, 0).repeat(rounds, 1, 1) for x in extra)
    out, logsumexp = _attend(q, k, v, blocks, mask, scale, itself, columns, batch * heads)
    if rounds > 1:
        weights = logsumexp.unflatten(0, (rounds, -1)).softmax(0).to(out.dtype)
        out = (out.unflatten(0, (rounds, -1)) * weights).sum(0)
    return out[:, 0].unflatten(0, (batch, heads))


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Blocks,
    mask: Tensor,
    scale: float,
    itself: float,
    extra: tuple[Tensor, ...],
    first: int,
) -> tuple[Tensor, Tensor]:
    """Values (B, H, N, D) of each row of `blocks` alone, and log-sum-exps (B, H, N, 1).

    The `first` rows are those of the first round; log-sum-exps are found only if there are others.
    """
    heads, reach = q.shape[1], blocks.visible.shape[-1]
    query, key, value = (x.transpose(1, 2).flatten(2) for x in (q, k, v))  # (B, N, H * D)
    query = gather_own(query, blocks).unflatten(-1, (heads, -1))
    key, value = (
        windows(gather_rows(x, blocks), reach).unflatten(-1, (heads, -1)) for x in (key, value)
    )
    columns = gather_own(extra[0], blocks), windows(gather_rows(extra[1], blocks), reach)
    blocked, width = query.shape[:2], query.shape[2]
    query, key = widen(query, columns[0]), widen(key, columns[1])
    here = torch.eye(width, device=mask.device)
    here = F.pad(here, (blocks.back * width, (reach - 1 - blocks.back) * width))
    later = torch.arange(mask.shape[0], device=mask.device) >= first
    alone = itself * torch.where(later, LATER, 1.0)[:, None, None, None]
    bias = (alone * here).masked_fill(~mask, float("-inf")).flatten(0, 1)[:, None]

    def unblock(x: Tensor) -> Tensor:
        rows = resort(x.transpose(1, 2).flatten(2).unflatten(0, blocked), blocks)
        return rows.unflatten(-1, (heads, -1)).transpose(1, 2)

    value = widen(value, None, columns[1])
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias.to(query.dtype), scale=scale
    )
    out = unblock(out[..., : v.shape[-1]])
    if first == mask.shape[0]:
        return out, out.new_empty(0)
    logits = scale * query.float() @ key.float().transpose(-1, -2) + bias
    return out, unblock(logits.logsumexp(-1, keepdim=True))


def widen(x: Tensor, extra: Tensor | None, like: Tensor | None = None) -> Tensor:
    """(B, G, S, H, D) with columns (B, G, S, P) appended, as (B * G, H, S, D + P).

    Without columns, zeros as many as those of `like`: fused attention wants one width for queries,
    keys and values.
    """
    x = x.flatten(0, 1)
    if extra is not None and extra.shape[-1]:
        columns = extra.flatten(0, 1)[:, :, None].expand(-1, -1, x.shape[2], -1)
        x = torch.cat([x, columns.to(x.dtype)], -1)
    elif like is not None and like.shape[-1]:
        x = F.pad(x, (0, like.shape[-1]))
    return x.transpose(1, 2)


def _own(blocks: Blocks) -> tuple[Tensor, Tensor]:
    """Members (B, G, S) of the blocks themselves, and slots (B, N) among them."""
    skipped = blocks.back * blocks.members.shape[-1]
    slot = torch.where(blocks.slot < 0, blocks.slot, blocks.slot - skipped)
    return blocks.members[:, blocks.own], slot


def _ceil_div(dividend: Tensor, divisor: Tensor | int) -> Tensor:
    return (dividend + divisor - 1).div(divisor, rounding_mode="floor")


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
