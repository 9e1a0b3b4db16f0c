"""Chunk attention in Triton: the operation, its gradient and what its kernels are given.

Letters as in _chunk_kernels_triton.py, which holds the kernels.
"""

import torch
import triton
from torch import Tensor

from clusterformer.kernels._chunk_kernels_triton import dkv_kernel, dq_kernel, forward_kernel
from clusterformer.kernels.reference import LATER, Blocks
from clusterformer.kernels.tiles import backward_tile, padded, row, tile

WIDEST = 256
"""Columns of the widest rows that a tile holds."""


def chunk_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Blocks,
    *,
    mask: Tensor | None,
    causal: bool,
    within: int | None,
    scale: float,
    itself: float,
    extra: tuple[Tensor, Tensor],
) -> Tensor:
    """Softmax attention of each block over the blocks that it sees; see `reference`.

    Keeps q, k, v, the values and one log-sum-exp for each token and head; no copy is sorted.

    Raises:
        ValueError: if a row is wider than a tile holds.
    """
    if q.shape[-1] > WIDEST or extra[0].shape[-1] > WIDEST:
        raise ValueError(
            f"the Triton kernels hold rows of up to {WIDEST} columns, got {q.shape[-1]} with "
            f"{extra[0].shape[-1]} extra; CLUSTERFORMER_KERNELS=reference takes any"
        )
    q, k, v, *columns = (_inner_contiguous(x.to(q.dtype)) for x in (q, k, v, *extra))
    index = (blocks.members, blocks.filled, blocks.visible, _homes(blocks))
    members, filled, visible, homes = (x.contiguous() for x in index)
    chosen = q.new_empty(0, dtype=torch.bool) if mask is None else mask.contiguous()
    options = blocks.back, scale, itself, causal, within or 0
    out, _ = _forward(q, k, v, *columns, members, filled, visible, homes, chosen, *options)
    return out


@torch.library.custom_op("clusterformer::chunk_attention_triton", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_extra: Tensor,
    k_extra: Tensor,
    members: Tensor,
    filled: Tensor,
    visible: Tensor,
    homes: Tensor,
    mask: Tensor,
    back: int,
    scale: float,
    itself: float,
    causal: bool,
    within: int,
) -> tuple[Tensor, Tensor]:
    """Values (B, H, N, D) and log-sum-exps (B, H, N) over all rounds.

    Args:
        q, k, v: (B, H, N, D), rows contiguous.
        q_extra, k_extra: (B, N, P), likewise.
        members, filled: (Z, L, S).
        visible: (Z, G, R).
        homes: (Z, G, C) places that hold each block; -1 for none.
        mask: (Z, G, S or 1, R * S), or empty.
        back, scale, itself, causal, within: As in `chunk_attention`; `within` 0 for any distance.
    """
    batch, heads, length, width = q.shape
    rounds = max(1, members.shape[0] // (batch * heads))
    out = q.new_zeros(rounds, batch, heads, length, width)
    sums = q.new_full((rounds, batch, heads, length), float("-inf"), dtype=torch.float32)
    shapes = tile(members.shape[2], row(width, q_extra.shape[-1]), q.element_size())
    forward_kernel[_grid(visible, members, shapes.queries, rounds * batch * heads)](
        q, k, v, q_extra, k_extra, members, filled, visible, mask, out, sums,
        *_strides(q, k, v, q_extra, k_extra),
        *_sizes(q, q_extra, members, visible, mask, scale, itself, within),
        **_constants(q, q_extra, members, visible, mask, back, causal, within, itself),
        BLOCK_M=shapes.queries, BLOCK_K=shapes.keys,
        num_warps=shapes.warps, num_stages=shapes.stages,
    )  # fmt: skip
    if rounds == 1:
        return out[0], sums[0]
    total = sums.logsumexp(0)
    shares = (sums - total.masked_fill(total == float("-inf"), 0.0)).exp()
    return (out * shares[..., None]).sum(0).to(q.dtype), total


@torch.library.custom_op("clusterformer::chunk_attention_triton_backward", mutates_args=())
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_extra: Tensor,
    k_extra: Tensor,
    members: Tensor,
    filled: Tensor,
    visible: Tensor,
    homes: Tensor,
    mask: Tensor,
    out: Tensor,
    sums: Tensor,
    back: int,
    scale: float,
    itself: float,
    causal: bool,
    within: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and the extra columns.

    With the log-sum-exp of all rounds together, each round's part of the softmax over their union
    has the gradient that a softmax of its own would have.
    """
    batch, heads, length, width = q.shape
    wide = q_extra.shape[-1]
    rounds = max(1, members.shape[0] // (batch * heads))
    grad = _inner_contiguous(grad)
    delta = (grad.float() * out.float()).sum(-1)
    rows = rounds, batch, heads, length
    d_q, d_k, d_v = (q.new_zeros(*rows, width) for _ in range(3))
    d_q_extra, d_k_extra = (q.new_zeros(*rows, wide, dtype=torch.float32) for _ in range(2))
    shapes = backward_tile(members.shape[2], row(width, wide), q.element_size())
    strides = (*_strides(q, k, v, q_extra, k_extra), *grad.stride()[:3])
    sizes = _sizes(q, q_extra, members, visible, mask, scale, itself, within)
    constants = {
        **_constants(q, q_extra, members, visible, mask, back, causal, within, itself),
        "BLOCK_M": shapes.queries, "BLOCK_K": shapes.keys,
        "num_warps": shapes.warps, "num_stages": shapes.stages,
    }  # fmt: skip
    programs = rounds * batch * heads
    dq_kernel[_grid(visible, members, shapes.queries, programs)](
        q, k, v, q_extra, k_extra, members, filled, visible, mask, sums, delta, grad, d_q,
        d_q_extra, *strides, *sizes, **constants,
    )  # fmt: skip
    dkv_kernel[_grid(visible, members, shapes.keys, programs)](
        q, k, v, q_extra, k_extra, members, filled, visible, homes, mask, sums, delta, grad, d_k,
        d_v, d_k_extra, *strides, *sizes, COPIES=homes.shape[2], **constants,
    )  # fmt: skip
    d_q, d_k, d_v = (x[0] if rounds == 1 else x.sum(0) for x in (d_q, d_k, d_v))
    d_q_extra, d_k_extra = (x.sum((0, 2)).to(q_extra.dtype) for x in (d_q_extra, d_k_extra))
    return d_q, d_k, d_v, d_q_extra, d_k_extra


@_forward.register_fake
def _(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


@_backward.register_fake
def _(grad: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in tensors[:5])


def _setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    tensors, ctx.options = inputs[:10], inputs[10:]
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx, grad: Tensor, _: Tensor):  # type: ignore[no-untyped-def]
    found = _backward(grad, *ctx.saved_tensors, *ctx.options)
    return *found, *10 * (None,)


_forward.register_autograd(_differentiate, setup_context=_setup)


def _homes(blocks: Blocks) -> Tensor:
    """Places that hold each block, the own one first, (Z, G, C); -1 for none."""
    slots = blocks.members.shape[-1]
    first = blocks.members[:, blocks.own, 0]  # (Z, G) a token that stands wherever its block does
    copies = blocks.copies.gather(1, first[..., None].expand(-1, -1, blocks.copies.shape[-1]))
    places = copies.div(slots, rounding_mode="floor")
    live = blocks.own_filled[..., :1]
    return places.masked_fill((copies < 0) | ~live, -1)


def _inner_contiguous(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or not x.shape[-1] else x.contiguous()


def _grid(visible: Tensor, members: Tensor, rows: int, programs: int) -> tuple[int, int]:
    return visible.shape[1] * triton.cdiv(members.shape[2], rows), programs


def _strides(q: Tensor, k: Tensor, v: Tensor, q_extra: Tensor, k_extra: Tensor) -> tuple[int, ...]:
    rows = (stride for x in (q, k, v) for stride in x.stride()[:3])
    return *rows, *q_extra.stride()[:2], *k_extra.stride()[:2]


def _sizes(
    q: Tensor, q_extra: Tensor, members: Tensor, visible: Tensor, mask: Tensor,
    scale: float, itself: float, within: int,
) -> tuple[float, ...]:  # fmt: skip
    mask_rows = mask.shape[2] if mask.numel() else 1
    return (
        mask_rows, q.shape[2], visible.shape[1], members.shape[2], q.shape[3], q_extra.shape[-1],
        scale, itself, within, q.shape[0] * q.shape[1],
    )  # fmt: skip


def _constants(
    q: Tensor, q_extra: Tensor, members: Tensor, visible: Tensor, mask: Tensor,
    back: int, causal: bool, within: int, itself: float,
) -> dict[str, object]:  # fmt: skip
    return {
        "H": q.shape[1],
        "R": visible.shape[2],
        "BACK": back,
        "LATER_BY": LATER,
        "SHARED": members.shape[0] == q.shape[0],
        "WIDE": q_extra.shape[-1] > 0,
        "CAUSAL": causal,
        "WITHIN": within > 0,
        "ALONE": itself != 0,
        "MASKED": mask.numel() > 0,
        "PRECISION": "ieee" if q.dtype is torch.float32 else "tf32",
        "BLOCK_D": padded(q.shape[3]),
        "BLOCK_P": padded(q_extra.shape[-1]),
    }
