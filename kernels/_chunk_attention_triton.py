"""Chunk attention in Triton: the operation, its gradient and what its kernels are given.

Letters as in _chunk_kernels_triton.py, which holds the kernels.
"""

import math

import torch
import triton
from torch import Tensor

from clusterformer.kernels._chunk_kernels_triton import dkv_kernel, dq_kernel, forward_kernel
from clusterformer.kernels.blocks import Blocks
from clusterformer.kernels.reference import LATER
from clusterformer.kernels.tiles import Device, Tile, backward_tile, padded, tile

WIDEST = 256
"""Columns of the widest rows that a tile holds."""

REACH = 2**31
"""Numbers that 32-bit offsets reach; a sequence that spans more takes 64-bit ones."""


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
    members = blocks.members.masked_fill(~blocks.filled, -1).int()
    index = members, blocks.visible.contiguous(), _homes(blocks)
    chosen = q.new_empty(0, dtype=torch.bool) if mask is None else mask.contiguous()
    options = blocks.back, scale, itself, causal, within or 0, blocks.padded
    out, _ = _forward(q, k, v, *columns, *index, chosen, *options)
    return out


@torch.library.custom_op("clusterformer::chunk_attention_triton", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_extra: Tensor,
    k_extra: Tensor,
    members: Tensor,
    visible: Tensor,
    homes: Tensor,
    mask: Tensor,
    back: int,
    scale: float,
    itself: float,
    causal: bool,
    within: int,
    gaps: bool,
) -> tuple[Tensor, Tensor]:
    """Values (B, H, N, D) and log-sum-exps (B, H, N) over all rounds.

    Args:
        q, k, v: (B, H, N, D), rows contiguous.
        q_extra, k_extra: (B, N, P), likewise.
        members: (Z, L, S) 32-bit token in each slot; -1 for none.
        visible: (Z, G, R).
        homes: (Z, G, C) places that hold each block; -1 for none.
        mask: (Z, G, S or 1, R * S), or empty.
        back, scale, itself, causal, within: As in `chunk_attention`; `within` 0 for any distance.
        gaps: Whether a token may stand in no slot; its values are 0.
    """
    rows = _rounds(q, members), *q.shape[:3]
    make = q.new_zeros if gaps else q.new_empty
    out, sums = make(*rows, q.shape[3]), make(*rows, dtype=torch.float32)
    if gaps:
        sums.fill_(float("-inf"))
    shapes = tile(*_tiled(q, q_extra, members))
    forward_kernel[_grid(rows, visible, members, shapes)](
        q, k, v, q_extra, k_extra, members, visible, mask, out, sums,
        *_strides(q, k, v, q_extra, k_extra),
        *_sizes(q, members, visible, mask, scale, itself, within),
        **_constants(q, k, v, q_extra, members, visible, mask, back, causal, within, itself),
        BLOCK_M=shapes.own, BLOCK_K=shapes.streamed, **_launch(shapes),
    )  # fmt: skip
    if len(out) == 1:
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
    gaps: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and the extra columns.

    With the log-sum-exp of all rounds together, each round's part of the softmax over their union
    has the gradient that a softmax of its own would have.
    """
    grad = _inner_contiguous(grad)
    rows = _rounds(q, members), *q.shape[:3]
    make = q.new_zeros if gaps else q.new_empty
    d_q, d_k, d_v = (make(*rows, q.shape[3]) for _ in range(3))
    d_q_extra, d_k_extra = (make(*rows, q_extra.shape[-1], dtype=torch.float32) for _ in range(2))
    delta = torch.empty_like(sums)
    strides = (*_strides(q, k, v, q_extra, k_extra), *grad.stride()[:3])
    sizes = _sizes(q, members, visible, mask, scale, itself, within)
    constants = _constants(q, k, v, q_extra, members, visible, mask, back, causal, within, itself)
    shapes = backward_tile(*_tiled(q, q_extra, members), keys=False)
    dq_kernel[_grid(rows, visible, members, shapes)](
        q, k, v, q_extra, k_extra, members, visible, mask, out.contiguous(), sums, grad, delta,
        d_q, d_q_extra, *strides, *sizes, **constants, BLOCK_M=shapes.own,
        BLOCK_K=shapes.streamed, **_launch(shapes),
    )  # fmt: skip
    shapes = backward_tile(*_tiled(q, q_extra, members), keys=True)
    dkv_kernel[_grid(rows, visible, members, shapes)](
        q, k, v, q_extra, k_extra, members, visible, homes, mask, sums, grad, delta, d_k, d_v,
        d_k_extra, *strides, *sizes, **constants, COPIES=homes.shape[2], BLOCK_M=shapes.streamed,
        BLOCK_K=shapes.own, **_launch(shapes),
    )  # fmt: skip
    d_q, d_k, d_v = (x[0] if len(x) == 1 else x.sum(0) for x in (d_q, d_k, d_v))
    d_q_extra, d_k_extra = (x.sum((0, 2)).to(q_extra.dtype) for x in (d_q_extra, d_k_extra))
    return d_q, d_k, d_v, d_q_extra, d_k_extra


@_forward.register_fake
def _(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


@_backward.register_fake
def _(grad: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in tensors[:5])


def _setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    tensors, ctx.options = inputs[:9], inputs[9:]
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


def _rounds(q: Tensor, members: Tensor) -> int:
    return max(1, members.shape[0] // (q.shape[0] * q.shape[1]))


def _tiled(q: Tensor, q_extra: Tensor, members: Tensor) -> tuple[int, int, int, int, Device]:
    sizes = members.shape[2], q.shape[3], q_extra.shape[-1], q.element_size()
    return *sizes, Device.of(q.device)


def _grid(rows: tuple[int, ...], visible: Tensor, members: Tensor, shapes: Tile) -> tuple[int]:
    """One dimension: only the first may be long."""
    return (math.prod(rows[:3]) * visible.shape[1] * triton.cdiv(members.shape[2], shapes.own),)


def _launch(shapes: Tile) -> dict[str, int]:
    return {"num_warps": shapes.warps, "num_stages": shapes.stages}


def _strides(q: Tensor, k: Tensor, v: Tensor, q_extra: Tensor, k_extra: Tensor) -> tuple[int, ...]:
    rows = (stride for x in (q, k, v) for stride in x.stride()[:3])
    return *rows, *q_extra.stride()[:2], *k_extra.stride()[:2]


def _sizes(
    q: Tensor, members: Tensor, visible: Tensor, mask: Tensor, scale: float, itself: float,
    within: int,
) -> tuple[float, ...]:  # fmt: skip
    mask_rows = mask.shape[2] if mask.numel() else 1
    return (
        mask_rows, q.shape[2], visible.shape[1], members.shape[2], scale, itself, within,
        q.shape[0] * q.shape[1],
    )  # fmt: skip


def _constants(
    q: Tensor, k: Tensor, v: Tensor, q_extra: Tensor, members: Tensor, visible: Tensor,
    mask: Tensor, back: int, causal: bool, within: int, itself: float,
) -> dict[str, object]:  # fmt: skip
    widest = max(q.shape[1] * q.shape[3], *(x.stride(2) for x in (q, k, v)))
    return {
        "H": q.shape[1],
        "R": visible.shape[2],
        "BACK": back,
        "LATER_BY": LATER,
        "SHARED": members.shape[0] == q.shape[0],
        "LONG": q.shape[2] * widest >= REACH,
        "WIDTH": q.shape[3],
        "WIDE": q_extra.shape[-1],
        "CAUSAL": causal,
        "WITHIN": within > 0,
        "ALONE": itself != 0,
        "MASKED": mask.numel() > 0,
        "PRECISION": "ieee" if q.dtype is torch.float32 else "tf32",
        "BLOCK_D": padded(q.shape[3]),
        "BLOCK_P": padded(q_extra.shape[-1]),
    }
