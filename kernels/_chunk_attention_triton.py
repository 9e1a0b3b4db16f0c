"""Chunk attention in Triton: the operation, its gradient and the launch of its kernels.

Letters as in _chunk_kernels_triton.py, which holds the kernels.
"""

import math

import torch
import triton
from torch import Tensor

from clusterformer.kernels._chunk_kernels_triton import dkv_kernel, dq_kernel, forward_kernel
from clusterformer.kernels._chunking_triton import packed
from clusterformer.kernels.autograd import register_backward
from clusterformer.kernels.blocks import Blocks
from clusterformer.kernels.merging import gradients_of_more, merge
from clusterformer.kernels.reference import LATER_ROUNDS
from clusterformer.kernels.tiles import Device, Tile, backward_tile, padded, tile

MAX_WIDTH = 256
"""Maximum number of columns of the rows that a tile holds."""

MAX_OFFSET = 2**31
"""Elements that 32-bit offsets reach; a longer sequence takes 64-bit offsets."""


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
    self_bias: float,
    extra: tuple[Tensor, Tensor],
    more: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Apply softmax attention of each block over the blocks that it sees; see `reference`.

    Saves q, k, v, the values and one log-sum-exp for each token and head; sorts no copy. Computes
    float64 in float32, as on CPU.

    Raises:
        ValueError: if a row is wider than a tile holds.
    """
    if q.shape[-1] > MAX_WIDTH or extra[0].shape[-1] > MAX_WIDTH:
        raise ValueError(
            f"the Triton kernels hold rows of up to {MAX_WIDTH} columns, got {q.shape[-1]} with "
            f"{extra[0].shape[-1]} extra; CLUSTERFORMER_KERNELS=reference takes any"
        )
    given = q.dtype
    dtype = torch.float32 if given is torch.float64 else given
    q, k, v, *columns = (_inner_contiguous(x.to(dtype)) for x in (q, k, v, *extra))
    members, own_entries = packed(blocks)
    index = members, blocks.visible.contiguous(), own_entries
    mask = q.new_empty(0, dtype=torch.bool) if mask is None else mask.contiguous()
    options = blocks.look_back, scale, self_bias, causal, within or 0, blocks.padded
    none = q.new_empty(0, dtype=torch.float32)
    further = (none, none) if more is None else (x.float() for x in more)
    out, _ = _forward(q, k, v, *columns, *further, *index, mask, *options)
    return out.to(given)


@torch.library.custom_op("clusterformer::chunk_attention_triton", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_extra: Tensor,
    k_extra: Tensor,
    more: Tensor,
    more_masses: Tensor,
    members: Tensor,
    visible: Tensor,
    own_entries: Tensor,
    mask: Tensor,
    look_back: int,
    scale: float,
    self_bias: float,
    causal: bool,
    within: int,
    gaps: bool,
) -> tuple[Tensor, Tensor]:
    """Compute values (B, H, N, D) and log-sum-exps (B, H, N) over all rounds.

    Args:
        q, k, v: (B, H, N, D), rows contiguous.
        q_extra, k_extra: (B, N, A), likewise.
        more, more_masses: (B, H, N, D) and (B, H, N) of further keys; empty for none.
        members: (B or R * B * H, G + J - 1, S) 32-bit token in each slot; -1 for none.
        visible: (B or R * B * H, G, J).
        own_entries: (B or R * B * H, G, copies) entries that hold each block; -1 for none.
        mask: (B or R * B * H, G, S or 1, J * S), or empty.
        look_back: Number of blocks seen before the own one.
        scale, self_bias, causal, within: As in the public operation; `within` 0 for any distance.
        gaps: True if a token may stand in no slot; its values are 0.
    """
    rows = _rounds(q, members), *q.shape[:3]
    allocate = q.new_zeros if gaps else q.new_empty
    out, lse = allocate(*rows, q.shape[3]), allocate(*rows, dtype=torch.float32)
    if gaps:
        lse.fill_(float("-inf"))
    shape = tile(*_tiled(q, q_extra, members))
    forward_kernel[_grid(rows, visible, members, shape)](
        q, k, v, q_extra, k_extra, members, visible, mask, out, lse,
        *_strides(q, k, v, q_extra, k_extra),
        *_sizes(q, members, visible, scale, self_bias, within),
        **_constants(
            q, k, v, q_extra, members, visible, mask, look_back, causal, within, self_bias
        ),
        BLOCK_Q=shape.own, BLOCK_KV=shape.streamed, **_launch(shape),
    )  # fmt: skip
    if len(out) == 1:
        values, total = merge(out[0], lse[0], more, more_masses)
        return values.to(q.dtype), total
    total = lse.logsumexp(0)
    shares = (lse - total.masked_fill(total == float("-inf"), 0.0)).exp()
    return (out * shares[..., None]).sum(0).to(q.dtype), total


@torch.library.custom_op("clusterformer::chunk_attention_triton_backward", mutates_args=())
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_extra: Tensor,
    k_extra: Tensor,
    more: Tensor,
    more_masses: Tensor,
    members: Tensor,
    visible: Tensor,
    own_entries: Tensor,
    mask: Tensor,
    out: Tensor,
    lse: Tensor,
    look_back: int,
    scale: float,
    self_bias: float,
    causal: bool,
    within: int,
    gaps: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute gradients of q, k, v, the additional columns and what further keys give.

    With the log-sum-exps of all rounds, each round's part of the softmax over their union has the
    gradient of a separate softmax.
    """
    grad = _inner_contiguous(grad)
    rows = _rounds(q, members), *q.shape[:3]
    allocate = q.new_zeros if gaps else q.new_empty
    dq, dk, dv = (allocate(*rows, q.shape[3]) for _ in range(3))
    dq_extra, dk_extra = (allocate(*rows, q_extra.shape[-1], dtype=torch.float32) for _ in range(2))
    delta = torch.empty_like(lse)
    strides = (*_strides(q, k, v, q_extra, k_extra), *grad.stride()[:3])
    sizes = _sizes(q, members, visible, scale, self_bias, within)
    constants = _constants(
        q, k, v, q_extra, members, visible, mask, look_back, causal, within, self_bias
    )
    shape = backward_tile(*_tiled(q, q_extra, members), keys=False)
    dq_kernel[_grid(rows, visible, members, shape)](
        q, k, v, q_extra, k_extra, members, visible, mask, out.contiguous(), lse, grad, delta, dq,
        dq_extra, *strides, *sizes, **constants, BLOCK_Q=shape.own, BLOCK_KV=shape.streamed,
        **_launch(shape),
    )  # fmt: skip
    shape = backward_tile(*_tiled(q, q_extra, members), keys=True)
    dkv_kernel[_grid(rows, visible, members, shape)](
        q, k, v, q_extra, k_extra, members, visible, own_entries, mask, lse, grad, delta, dk, dv,
        dk_extra, *strides, *sizes, **constants, COPIES=own_entries.shape[2],
        BLOCK_Q=shape.streamed, BLOCK_KV=shape.own, **_launch(shape),
    )  # fmt: skip
    dq, dk, dv = (x[0] if len(x) == 1 else x.sum(0) for x in (dq, dk, dv))
    dq_extra, dk_extra = (x.sum((0, 2)).to(q_extra.dtype) for x in (dq_extra, dk_extra))
    further = gradients_of_more(grad, out, lse, more, more_masses)
    return dq, dk, dv, dq_extra, dk_extra, *further


@_forward.register_fake
def _(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


register_backward(_forward, _backward, gradients=7)


def _inner_contiguous(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or not x.shape[-1] else x.contiguous()


def _rounds(q: Tensor, members: Tensor) -> int:
    return max(1, members.shape[0] // (q.shape[0] * q.shape[1]))


def _tiled(q: Tensor, q_extra: Tensor, members: Tensor) -> tuple[int, int, int, int, Device]:
    sizes = members.shape[2], q.shape[3], q_extra.shape[-1], q.element_size()
    return *sizes, Device.of(q.device)


def _grid(rows: tuple[int, ...], visible: Tensor, members: Tensor, shape: Tile) -> tuple[int]:
    """Grid in one dimension: only the first may be long."""
    return (math.prod(rows[:3]) * visible.shape[1] * triton.cdiv(members.shape[2], shape.own),)


def _launch(shape: Tile) -> dict[str, int]:
    return {"num_warps": shape.warps, "num_stages": shape.stages}


def _strides(q: Tensor, k: Tensor, v: Tensor, q_extra: Tensor, k_extra: Tensor) -> tuple[int, ...]:
    rows = (stride for x in (q, k, v) for stride in x.stride()[:3])
    return *rows, *q_extra.stride()[:2], *k_extra.stride()[:2]


def _sizes(
    q: Tensor, members: Tensor, visible: Tensor, scale: float, self_bias: float, within: int
) -> tuple[float, ...]:
    return (
        q.shape[2], visible.shape[1], members.shape[2], scale, self_bias, within,
        q.shape[0] * q.shape[1],
    )  # fmt: skip


def _constants(
    q: Tensor, k: Tensor, v: Tensor, q_extra: Tensor, members: Tensor, visible: Tensor,
    mask: Tensor, look_back: int, causal: bool, within: int, self_bias: float,
) -> dict[str, object]:  # fmt: skip
    widest = max(q.shape[1] * q.shape[3], *(x.stride(2) for x in (q, k, v)))
    return {
        "H": q.shape[1],
        "J": visible.shape[2],
        "LOOK_BACK": look_back,
        "LATER_ROUNDS": LATER_ROUNDS,
        "SHARED": members.shape[0] == q.shape[0],
        "LONG": q.shape[2] * widest >= MAX_OFFSET,
        "WIDTH": q.shape[3],
        "EXTRA": q_extra.shape[-1],
        "CAUSAL": causal,
        "WITHIN": within > 0,
        "SELF_BIAS": self_bias != 0,
        "MASKED": 0 if not mask.numel() else 1 if mask.shape[2] == 1 else 2,
        "PRECISION": "ieee" if q.dtype is torch.float32 else "tf32",
        "BLOCK_D": padded(q.shape[3]),
        "BLOCK_A": padded(q_extra.shape[-1]),
    }
