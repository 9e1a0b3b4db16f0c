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
from clusterformer.kernels.dispatch import use_cpu
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
    more: tuple[Tensor, Tensor] | None = None,
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
        more: Values (B, N, D) of attention of each query to further keys, and masses (B, N, 1), the
            log of the sum of exp over their logits; -1e30 for a query without one. None for none.
        scale: Factor on the logits.

    Returns:
        (B, N, D), float32 on CPU; 0 where a query has no slot.

    Cost: O(G S K D) time; O(N D) memory on CPU, O(G K D) elsewhere.
    """
    if not use_cpu(q.device):
        return reference(q, k, v, members, filled, seen, mask, more, scale=scale)
    further = more or (q.new_empty(0, 0, q.shape[2]), q.new_empty(0, 0, 1))
    sequence = torch.arange(q.shape[0])[:, None, None]
    members, seen = members + sequence * q.shape[1], seen + sequence * k.shape[1]
    rows = (x.float().flatten(0, 1) for x in (q, k, v, *further))
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
    more: tuple[Tensor, Tensor] | None = None,
    *,
    scale: float,
) -> Tensor:
    """Define `gathered_attention`."""
    query, key, value = _rows(q, members), _rows(k, seen), _rows(v, seen)
    if more is None:
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    else:
        logits = (scale * query @ key.mT).float().masked_fill(~mask, float("-inf"))
        values_of_more, masses = (_rows(x, members) for x in more)
        weights = torch.cat([logits, masses.float()], -1).softmax(-1).to(v.dtype)
        out = weights[..., :-1] @ value + weights[..., -1:] * values_of_more
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
    more: Tensor,
    more_masses: Tensor,
    members: Tensor,
    filled: Tensor,
    seen: Tensor,
    mask: Tensor,
    scale: float,
) -> Tensor:
    """Compute values (B * N, D).

    Args:
        q: (B * N, D). k, v: (B * M, D).
        more, more_masses: (B * N, D) and (B * N, 1) of further keys; empty for none.
        members, filled: (B * G, S), rows of q and whether each slot holds one.
        seen: (B * G, K) rows of k. mask: (B * G, 1 or S, K), whether each has weight.
        scale: Factor on the logits.
    """
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    for groups in _pieces(k, filled, seen):
        own, keys = members[groups], seen[groups]
        masses = _masses(more_masses, own)
        weights = _weights(take_rows(q, own), take_rows(k, keys), mask[groups], masses, scale)
        values = torch.bmm(weights[..., : keys.shape[1]], take_rows(v, keys))
        if masses is not None:
            values.addcmul_(weights[..., -1:], take_rows(more, own))
        add_rows(out, own, values.mul_(filled[groups, :, None]))
    return out


@torch.library.custom_op("clusterformer::gathered_attention_backward", mutates_args=())
@torch.autocast("cpu", enabled=False)  # where the backward pass too runs under autocast
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    more: Tensor,
    more_masses: Tensor,
    members: Tensor,
    filled: Tensor,
    seen: Tensor,
    mask: Tensor,
    scale: float,
    needed: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute gradients of q, k, v and of what further keys give; the weights are computed again.

    Those of q, k and the masses are 0 if none of them is needed.
    """
    rows = (q, k, v, more, more_masses)
    dq, dk, dv, dmore, dmasses = (
        torch.zeros_like(x, memory_format=torch.contiguous_format) for x in rows
    )
    for groups in _pieces(k, filled, seen):
        own, keys = members[groups], seen[groups]
        query, key, masses = take_rows(q, own), take_rows(k, keys), _masses(more_masses, own)
        weights = _weights(query, key, mask[groups], masses, scale)
        do = take_rows(grad, own).mul_(filled[groups, :, None])
        own_weights = weights[..., : keys.shape[1]]
        add_rows(dv, keys, torch.bmm(own_weights.transpose(1, 2), do))
        if masses is not None:
            add_rows(dmore, own, weights[..., -1:] * do)
        if not (needed[0] or needed[1] or needed[4]):
            continue
        dp = torch.bmm(do, take_rows(v, keys).transpose(1, 2))
        if masses is not None:
            dp = torch.cat([dp, (do * take_rows(more, own)).sum(-1, keepdim=True)], -1)
        ds = torch._softmax_backward_data(dp, weights, -1, torch.float32)
        if masses is not None:
            add_rows(dmasses, own, ds[..., -1:])
            ds = ds[..., :-1]
        ds *= scale
        add_rows(dq, own, torch.bmm(ds, key))
        add_rows(dk, keys, torch.bmm(ds.transpose(1, 2), query))
    return dq, dk, dv, dmore, dmasses


@_forward.register_fake
def _(q: Tensor, *_others: object) -> Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)


register_backward(_forward, _backward, gradients=5, save_outputs=False, tell_needed=True)


def _pieces(k: Tensor, filled: Tensor, seen: Tensor) -> tuple[Tensor, ...]:
    """Cut groups into pieces whose keys fit the cache; groups without a query are left out."""
    size = max(1, PIECE // max(1, seen.shape[-1] * k.shape[-1]))
    groups = filled.any(-1).nonzero()[:, 0]
    return groups.split(size) if len(groups) else ()


def _masses(more_masses: Tensor, own: Tensor) -> Tensor | None:
    """Take the masses of further keys (groups, S, 1) for the queries in slots `own` (groups, S)."""
    return take_rows(more_masses, own) if more_masses.numel() else None


def _weights(
    query: Tensor, key: Tensor, mask: Tensor, masses: Tensor | None, scale: float
) -> Tensor:
    """Softmax weights of queries (groups, S, D) over keys (groups, K, D), and over further keys.

    Returns:
        (groups, S, K), or (groups, S, K + 1), whose last column has the weight of all further keys.
    """
    bias = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, float("-inf"))
    logits = torch.baddbmm(bias, query, key.transpose(1, 2), alpha=scale)
    return (logits if masses is None else torch.cat([logits, masses], -1)).softmax(-1)
