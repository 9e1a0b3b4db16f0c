"""Attention of groups of queries to keys that are gathered for each group.

B batch   N queries   M keys   D width   S block size (slots)   G groups (segments of the queries)
K keys that a group sees

On CPU batched products serve: groups are small, and many small calls of PyTorch's fused attention,
which also saves its values and log-sum-exps for the backward pass, take longer.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.kernels.autograd import register_backward
from clusterformer.kernels.rows import add_rows, take_rows

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
        mask: (B, G, 1 or S, K) bool, False for a key that has no weight, for all slots or for each.
            No row may be all False.
        scale: Factor on the logits.

    Returns:
        (B, N, D), float32 on CPU; 0 where a query has no slot.

    Cost: O(G S K D) time; O(N D) memory on CPU, O(G K D) elsewhere.
    """
    if q.device.type != "cpu" or torch.onnx.is_in_onnx_export():
        return reference(q, k, v, members, filled, seen, mask, scale=scale)
    sequence = torch.arange(q.shape[0])[:, None, None]
    members, seen = members + sequence * q.shape[1], seen + sequence * k.shape[1]
    rows = (x.float().flatten(0, 1) for x in (q, k, v))
    index = (x.flatten(0, 1) for x in (members, filled, seen, mask))
    return _forward(*rows, *index, scale).unflatten(0, q.shape[:2])


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
        _rows(q, members), _rows(k, seen), _rows(v, seen), attn_mask=mask, scale=scale
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
    """Compute values (B * N, D).

    Args:
        q: (B * N, D). k, v: (B * M, D).
        members, filled: (B * G, S), rows of q and whether each slot holds one.
        seen: (B * G, K) rows of k. mask: (B * G, 1 or S, K), whether each has weight.
        scale: Factor on the logits.
    """
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    for groups in _pieces(k, filled, seen):
        own, keys = members[groups], seen[groups]
        weights = _weights(take_rows(q, own), take_rows(k, keys), mask[groups], scale)
        values = torch.bmm(weights, take_rows(v, keys))
        add_rows(out, own, values.mul_(filled[groups, :, None]))
    return out


@torch.library.custom_op("clusterformer::gathered_attention_backward", mutates_args=())
@torch.autocast("cpu", enabled=False)  # where the backward pass too runs under autocast
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
    needed: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute gradients of q, k and v; the weights are computed again.

    Those of q and k are 0 if neither is needed.
    """
    dq, dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    for groups in _pieces(k, filled, seen):
        own, keys = members[groups], seen[groups]
        query, key = take_rows(q, own), take_rows(k, keys)
        weights = _weights(query, key, mask[groups], scale)
        do = take_rows(grad, own).mul_(filled[groups, :, None])
        add_rows(dv, keys, torch.bmm(weights.transpose(1, 2), do))
        if not (needed[0] or needed[1]):
            continue
        dp = torch.bmm(do, take_rows(v, keys).transpose(1, 2))
        ds = torch._softmax_backward_data(dp, weights, -1, torch.float32).mul_(scale)
        add_rows(dq, own, torch.bmm(ds, key))
        add_rows(dk, keys, torch.bmm(ds.transpose(1, 2), query))
    return dq, dk, dv


@_forward.register_fake
def _(q: Tensor, *_others: object) -> Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)


register_backward(_forward, _backward, gradients=3, save_outputs=False, tell_needed=True)


def _pieces(k: Tensor, filled: Tensor, seen: Tensor) -> tuple[Tensor, ...]:
    """Cut groups into pieces whose keys fit the cache; groups without a query are left out."""
    size = max(1, PIECE // max(1, seen.shape[-1] * k.shape[-1]))
    groups = filled.any(-1).nonzero()[:, 0]
    return groups.split(size) if len(groups) else ()


def _weights(query: Tensor, key: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Softmax weights (groups, S, K) of queries (groups, S, D) over keys (groups, K, D)."""
    bias = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, float("-inf"))
    return torch.baddbmm(bias, query, key.transpose(1, 2), alpha=scale).softmax(-1)
