"""Groups of queries attend to keys that are gathered for each group.

B batch   N queries   M keys   D width   G groups   S slots a group   R keys a group sees
T = B * N
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

PIECE = 2**19
"""Most numbers in the gathered keys of one piece on CPU, 2 MiB: they stay in a core's cache."""

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


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
    """Softmax attention of each group's queries over the group's own keys.

    Args:
        q: (B, N, D). k, v: (B, M, D).
        members: (B, G, S) query in each slot; each query stands in at most one filled slot.
        filled: (B, G, S) bool, True where a slot holds a query.
        seen: (B, G, R) keys that the group sees.
        mask: (B, G, R) bool, False for a key that counts for nothing. No row may be all False.
        scale: Factor on the logits.

    Returns:
        (B, N, D), float32 on CPU; 0 where a query stands nowhere.

    Cost: O(G S R D) time; O(N D) memory on CPU, O(G R D) elsewhere.
    """
    if q.device.type == "cpu":
        return _forward(q.float(), k.float(), v.float(), members, filled, seen, mask, scale)[0]
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
    """The definition of `gathered_attention`."""
    out = F.scaled_dot_product_attention(
        _rows(q, members), _rows(k, seen), _rows(v, seen), attn_mask=mask[:, :, None], scale=scale
    )
    place = (
        members.masked_fill(~filled, q.shape[1]).flatten(1)[..., None].expand(-1, -1, q.shape[2])
    )
    found = out.new_zeros(q.shape[0], q.shape[1] + 1, q.shape[2])
    return found.scatter(1, place, out.flatten(1, 2))[:, :-1]


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x (B, N, D) at index (B, G, S), (B, G, S, D)."""
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
) -> tuple[Tensor, Tensor]:
    """Values (B, N, D) and log-sum-exp (B, G, 1, S)."""
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    logsumexp = q.new_empty(members.shape[0] * members.shape[1], 1, members.shape[2])
    for some, own, keys in _pieces(q, k, members, seen):
        rows, groups = _take(q, own), _take(k, keys)
        values, sums = _flash(
            rows, groups, _take(v, keys), 0.0, False, attn_mask=_bias(mask, some), scale=scale
        )
        _add(out, own, values[:, 0] * filled.flatten(0, 1)[some, :, None])
        logsumexp[some] = sums
    return out, logsumexp


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
    out: Tensor,
    logsumexp: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    d_q, d_k, d_v = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    for some, own, keys in _pieces(q, k, members, seen):
        given = _take(grad, own) * filled.flatten(0, 1)[some, None, :, None]
        of_q, of_k, of_v = _flash_backward(
            given, _take(q, own), _take(k, keys), _take(v, keys), _take(out, own),
            logsumexp[some], 0.0, False, attn_mask=_bias(mask, some), scale=scale,
        )  # fmt: skip
        _add(d_q, own, of_q)
        _add(d_k, keys, of_k)
        _add(d_v, keys, of_v)
    return d_q, d_k, d_v


@_forward.register_fake
def _(q: Tensor, *tensors: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    members = tensors[2]
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    return out, q.new_empty(members.shape[0] * members.shape[1], 1, members.shape[2])


@_backward.register_fake
def _(grad: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    contiguous = torch.contiguous_format
    return tuple(torch.empty_like(x, memory_format=contiguous) for x in tensors[:3])


def _setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx, grad: Tensor, _: Tensor):  # type: ignore[no-untyped-def]
    found = _backward(grad, *ctx.saved_tensors, ctx.scale)
    return *found, None, None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_setup)


def _pieces(
    q: Tensor, k: Tensor, members: Tensor, seen: Tensor
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Cut the work into groups whose keys fit the cache.

    Yields a slice of the B * G groups, and the rows, 0..T-1, of their queries and of their keys.
    """
    batch, groups, size = seen.shape
    row = torch.arange(batch)[:, None, None]
    own = (members + row * q.shape[1]).flatten(0, 1)
    keys = (seen + row * k.shape[1]).flatten(0, 1)
    step = max(1, PIECE // max(1, size * k.shape[2]))
    for first in range(0, batch * groups, step):
        some = slice(first, min(first + step, batch * groups))
        yield some, own[some], keys[some]


def _take(x: Tensor, index: Tensor) -> Tensor:
    """Rows (G, 1, S, D) of x (B, N, D)."""
    return x.flatten(0, 1).index_select(0, index.flatten()).view(len(index), 1, -1, x.shape[-1])


def _add(total: Tensor, index: Tensor, part: Tensor) -> None:
    """Add to rows; two dimensions and contiguous, as PyTorch is fast for."""
    width = total.shape[-1]
    total.view(-1, width).index_add_(0, index.flatten(), part.reshape(-1, width))


def _bias(mask: Tensor, some: slice) -> Tensor:
    seen = mask.flatten(0, 1)[some]
    return torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))[:, None, None]
