"""The operations of clustered attention in plain PyTorch: the specification of the kernels.

B batch   H heads   N tokens   D head width   A additional columns   C clusters
S block size   R hash rounds   G blocks   J blocks that a block sees
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.kernels.blocks import Blocks, Sorted, windows
from clusterformer.kernels.ordering import stable_order
from clusterformer.kernels.rows import gather_own, gather_rows, repeat_rows, resort

LATER_ROUNDS = 1.2
"""Factor on `self_bias` in hash rounds after the first: a token that sees nothing else then counts
once. Float16 holds 1.2 times Reformer's -5e4."""


class Assigned(NamedTuple):
    """Attributes: assignment (B, N) integer; memberships (B, C, N), eq. 2 (0 at padding)."""

    assignment: Tensor
    memberships: Tensor


def assign(similarity: Tensor, key_mask: Tensor | None = None) -> Assigned:
    """Compute memberships, normalised over tokens, and clusters (ClusterFormer, eq. 2 and 4).

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
    assignment = argmax_first(memberships.detach(), 1)
    memberships = memberships.exp()
    if key_mask is not None:
        memberships = memberships.masked_fill(~key_mask[:, None], 0.0)
    return Assigned(assignment, memberships)


def argmax_first(values: Tensor, dim: int, margin: Tensor | float = 0.0) -> Tensor:
    """Return the argmax over one dimension, the first index where values are equal.

    Values that differ from the largest by no more than `margin` count as equal to it. Two maxima
    are faster than one argmax, above all on small integers.
    """
    last = values.shape[dim] - 1
    short = last < 2**15 and not torch.onnx.is_in_onnx_export()  # ONNX has no maximum of int16
    dtype = torch.int16 if short else torch.int32
    shape = [1] * values.dim()
    shape[dim] = -1
    backwards = torch.arange(last, -1, -1, dtype=dtype, device=values.device).view(shape)
    largest = values >= values.amax(dim, keepdim=True) - margin
    return last - (largest * backwards).amax(dim).long()


def sort(assignment: Tensor, num_clusters: int, key_mask: Tensor | None = None) -> Sorted:
    """Sort tokens by cluster, stably, padding behind all clusters (eq. 5).

    Args:
        assignment: (B, N) integers in 0..C-1.
        num_clusters: C.
        key_mask: (B, N), True at real tokens; None means all real.
    """
    batch, length = assignment.shape
    if key_mask is not None:
        assignment = assignment.masked_fill(~key_mask, num_clusters)
    order = stable_order(assignment)
    positions = torch.arange(length, device=order.device).expand(batch, length)
    inverse = torch.empty_like(order).scatter_(1, order, positions)
    counts = order.new_zeros(batch, num_clusters + 1)
    counts = counts.scatter_add(1, assignment, torch.ones_like(assignment))
    return Sorted(order, inverse, counts[:, :num_clusters])


def chunk_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Blocks,
    *,
    mask: Tensor,
    scale: float,
    self_bias: float,
    extra: tuple[Tensor, Tensor],
    more: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Apply softmax attention of each block over the blocks that it sees.

    Args:
        q, k, v: (B, H, N, D). The logits are scale * q . k.
        blocks: Index structure of each sequence (B, ...), of each head (B * H, ...), or of each
            head in several hash rounds (R * B * H, ...). With rounds, the softmax is one over all
            that a token sees in any round.
        mask: Slots of its window that a slot may attend to, as from `window_mask`.
        scale: Factor on the logits.
        self_bias: Bias on the logit of a token with itself; in later rounds `LATER_ROUNDS` times.
        extra: Additional columns of q and of k, (B, N, A) each, the same for all heads; A may be 0.
        more: Values (B, H, N, D) and masses (B, H, N) of further keys in the same softmax, where
            all heads share the blocks.

    Returns:
        (B, H, N, D); 0 at padding, plus `more`.
    """
    batch, heads = q.shape[:2]
    if blocks.members.shape[0] == batch:
        out, masses = _attend(
            q, k, v, blocks, mask, scale, self_bias, extra, batch, with_masses=more is not None
        )
        if more is None:
            return out
        shares = torch.stack([masses[..., 0], more[1].float()]).softmax(0).to(out.dtype)[..., None]
        return shares[0] * out + shares[1] * more[0].to(out.dtype)
    rounds = blocks.members.shape[0] // (batch * heads)
    q, k, v = (x.flatten(0, 1)[:, None].repeat(rounds, 1, 1, 1) for x in (q, k, v))
    columns = tuple(repeat_rows(x, heads).repeat(rounds, 1, 1) for x in extra)
    out, logsumexp = _attend(
        q, k, v, blocks, mask, scale, self_bias, columns, batch * heads, with_masses=rounds > 1
    )
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
    self_bias: float,
    extra: tuple[Tensor, ...],
    first_rows: int,
    *,
    with_masses: bool,
) -> tuple[Tensor, Tensor]:
    """Values (B, H, N, D) and log-sum-exps (B, H, N, 1) of each row of `blocks`.

    The first `first_rows` rows are those of the first round.
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
    diagonal = torch.eye(width, device=mask.device)
    diagonal = F.pad(diagonal, (blocks.look_back * width, (reach - 1 - blocks.look_back) * width))
    later = torch.arange(mask.shape[0], device=mask.device) >= first_rows
    row_bias = self_bias * torch.where(later, LATER_ROUNDS, 1.0)[:, None, None, None]
    bias = (row_bias * diagonal).masked_fill(~mask, float("-inf")).flatten(0, 1)[:, None]

    def unblock(x: Tensor) -> Tensor:
        rows = resort(x.transpose(1, 2).flatten(2).unflatten(0, blocked), blocks)
        return rows.unflatten(-1, (heads, -1)).transpose(1, 2)

    value = widen(value, None, columns[1])
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias.to(query.dtype), scale=scale
    )
    out = unblock(out[..., : v.shape[-1]])
    if not with_masses:
        return out, out.new_empty(0)
    logits = scale * query.float() @ key.float().transpose(-1, -2) + bias
    return out, unblock(logits.logsumexp(-1, keepdim=True))


def widen(x: Tensor, extra: Tensor | None, like: Tensor | None = None) -> Tensor:
    """Append columns (B, G, S, A) to (B, G, S, H, D), giving (B * G, H, S, D + A).

    Without columns, append as many zeros as `like` has columns: fused attention wants one width
    for queries, keys and values.
    """
    x = x.flatten(0, 1)
    if extra is not None and extra.shape[-1]:
        columns = extra.flatten(0, 1)[:, :, None].expand(-1, -1, x.shape[2], -1)
        x = torch.cat([x, columns.to(x.dtype)], -1)
    elif like is not None and like.shape[-1]:
        x = F.pad(x, (0, like.shape[-1]))
    return x.transpose(1, 2)
