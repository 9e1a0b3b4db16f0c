"""Attention of groups of queries to keys that are gathered for each group.

B batch   N queries   M keys   D width   S block size (slots)   G groups (segments of the queries)
K keys that a group sees

On CPU batched products serve: groups are small, and many small calls of PyTorch's fused attention,
which also saves its values and log-sum-exps for the backward pass, take longer.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

PIECE = 2**19
"""Maximum number of elements in the gathered keys of one piece: 2 MiB fit a core's cache."""


def gathered_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    members: Tensor,
    filled: Tensor,
    seen: Tensor,
    mask: Tensor,
    *,
    scale: float,
) -> Tensor:
    """Apply softmax attention of each group's queries over the group's keys.

    Args:
        q: (B, N, D). k, v: (B, M, D).
        members: (B, G, S) query in each slot; each query stands in at most one filled slot.
        filled: (B, G, S) bool, True where a slot holds a query.
        seen: (B, G, K) keys that the group sees.
        mask: (B, G, K) bool, False for a key that has no weight. No row may be all False.
        scale: Factor on the logits.

    Returns:
        (B, N, D), float32 on CPU; 0 where a query has no slot.

    Cost: O(G S K D) time; O(N D) memory on CPU, O(G K D) elsewhere.
    """
    if q.device.type == "cpu":
        return _forward(q.float(), k.float(), v.float(), members, filled, seen, mask, scale)
    return reference(q, k, v, members, filled, seen, mask, scale=scale)


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    members: Tensor,
    filled: Tensor,
    seen: Tensor,
    mask: Tensor,
    *,
    scale: float,
) -> Tensor:
    """Define `gathered_attention`."""
    out = F.scaled_dot_product_attention(
        _rows(q, members), _rows(k, seen), _rows(v, seen), attn_mask=mask[:, :, None], scale=scale
    )
    token = members.masked_fill(~filled, q.shape[1]).flatten(1)
    values = out.new_zeros(q.shape[0], q.shape[1] + 1, q.shape[2])
    index = token[..., None].expand(-1, -1, q.shape[2])
    return values.scatter(1, index, out.flatten(1, 2))[:, :-1]


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Select rows of x (B, N, D) at index (B, G, S), giving (B, G, S, D)."""
    flat = index.flatten(1)[..., None].expand(-1, -1, x.shape[-1])
    return x.gather(1, flat).unflatten(1, index.shape[1:])


@torch.library.custom_op("clusterformer::gathered_attention", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    members: Tensor,
    filled: Tensor,
    seen: Tensor,
    mask: Tensor,
    scale: float,
) -> Tensor:
    """Compute values (B, N, D)."""
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    for groups, own, keys in _pieces(q, k, members, filled, seen):
        weights = _weights(_take_rows(q, own), _take_rows(k, keys), mask, groups, scale)
        values = torch.bmm(weights, _take_rows(v, keys))
        _add_rows(out, own, values.mul_(filled.flatten(0, 1)[groups, :, None]))
    return out


@torch.library.custom_op("clusterformer::gathered_attention_backward", mutates_args=())
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    members: Tensor,
    filled: Tensor,
    seen: Tensor,
    mask: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute gradients of q, k and v; the weights are computed again."""
    dq, dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    for groups, own, keys in _pieces(q, k, members, filled, seen):
        query, key = _take_rows(q, own), _take_rows(k, keys)
        weights = _weights(query, key, mask, groups, scale)
        do = _take_rows(grad, own).mul_(filled.flatten(0, 1)[groups, :, None])
        dp = torch.bmm(do, _take_rows(v, keys).transpose(1, 2))
        ds = torch._softmax_backward_data(dp, weights, -1, torch.float32).mul_(scale)
        _add_rows(dq, own, torch.bmm(ds, key))
        _add_rows(dk, keys, torch.bmm(ds.transpose(1, 2), query))
        _add_rows(dv, keys, torch.bmm(weights.transpose(1, 2), do))
    return dq, dk, dv


@_forward.register_fake
def _(q: Tensor, *_others: object) -> Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)


@_backward.register_fake
def _(grad: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    contiguous = torch.contiguous_format
    return tuple(torch.empty_like(x, memory_format=contiguous) for x in tensors[:3])


def _setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
    found = _backward(grad, *ctx.saved_tensors, ctx.scale)
    return *found, None, None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_setup)


def _pieces(
    q: Tensor, k: Tensor, members: Tensor, filled: Tensor, seen: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Cut the work into groups whose keys fit the cache; groups without a query are left out.

    Yields indices of some of the B * G groups, and the rows of their queries (of B * N) and of
    their keys (of B * M).
    """
    size = seen.shape[-1]
    row = torch.arange(len(seen))[:, None, None]
    own = (members + row * q.shape[1]).flatten(0, 1)
    keys = (seen + row * k.shape[1]).flatten(0, 1)
    step = max(1, PIECE // max(1, size * k.shape[2]))
    for groups in filled.flatten(0, 1).any(-1).nonzero()[:, 0].split(step):
        yield groups, own[groups], keys[groups]


def _weights(query: Tensor, key: Tensor, mask: Tensor, groups: Tensor, scale: float) -> Tensor:
    """Softmax weights (G, S, K) of queries (G, S, D) over keys (G, K, D)."""
    seen = mask.flatten(0, 1)[groups, None]
    bias = torch.zeros_like(seen, dtype=query.dtype).masked_fill_(~seen, float("-inf"))
    return torch.baddbmm(bias, query, key.transpose(1, 2), alpha=scale).softmax(-1)


def _take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Select rows (G, S, D) of x (B, N, D)."""
    return x.flatten(0, 1).index_select(0, index.flatten()).view(len(index), -1, x.shape[-1])


def _add_rows(total: Tensor, index: Tensor, part: Tensor) -> None:
    """Add to rows; index_add_ is fast in two contiguous dimensions."""
    width = total.shape[-1]
    total.view(-1, width).index_add_(0, index.flatten(), part.view(-1, width))
