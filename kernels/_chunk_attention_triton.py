"""Chunk attention in Triton: rows are gathered inside the kernel, the resort is in its stores.

B batch   H heads   N tokens   D head width   P width of the extra columns
Z rows of `Blocks` (B, or rounds * B * H)   G blocks   S slots a block   R blocks seen
M queries, K keys of one tile

A program owns the queries (forward, dq) or the keys (dk, dv) of one tile of one block and head.
Every token stands in one own slot a round, so no two programs write one row: no atomics, and the
same bits from run to run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from clusterformer.kernels.reference import LATER, Blocks
from clusterformer.kernels.tiles import backward_tile, padded, row, tile

WIDEST = 256
"""Columns of the widest rows that a tile holds."""


@triton.jit
def _locate(pid, rounds_bh, H: tl.constexpr, SHARED: tl.constexpr):
    """Row of Blocks, sequence, head and round of a program."""
    bh = pid % rounds_bh
    batch = bh // H
    head = bh % H
    return (batch if SHARED else pid), batch.to(tl.int64), head.to(tl.int64), pid // rounds_bh


@triton.jit
def _rows(pointer, token, stride, width, BLOCK: tl.constexpr, valid):
    """Rows of tokens, (tile, BLOCK), zeros where not valid or beyond the width."""
    column = tl.arange(0, BLOCK)
    mask = valid[:, None] & (column < width)[None, :]
    return tl.load(pointer + token[:, None] * stride + column[None, :], mask=mask, other=0.0)


@triton.jit
def _store(pointer, token, stride, width, BLOCK: tl.constexpr, valid, rows):
    column = tl.arange(0, BLOCK)
    mask = valid[:, None] & (column < width)[None, :]
    tl.store(pointer + token[:, None] * stride + column[None, :], rows, mask=mask)


@triton.jit
def _logits(
    q, k, q_extra, k_extra, q_token, k_token, q_valid, k_valid, q_rank, k_rank, entry,
    mask_row, S, R, scale, alone, within, BACK: tl.constexpr,
    WIDE: tl.constexpr, CAUSAL: tl.constexpr, WITHIN: tl.constexpr, ALONE: tl.constexpr,
    MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Logits (M, K) of a tile of queries with a tile of one block's keys; -inf where unseen."""
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if WIDE:
        logits += tl.dot(q_extra, tl.trans(k_extra), input_precision=PRECISION)
    logits *= scale
    if ALONE:
        own = (entry == BACK) & (q_rank[:, None] == k_rank[None, :])
        logits += tl.where(own, alone, 0.0)
    seen = q_valid[:, None] & k_valid[None, :]
    if MASKED:
        at = mask_row[:, None] + (entry * S + k_rank)[None, :]
        seen &= tl.load(at, mask=seen, other=0) != 0
    if CAUSAL:
        seen &= k_token[None, :] <= q_token[:, None]
    if WITHIN:
        distance = (entry - BACK) * S + k_rank[None, :] - q_rank[:, None]
        seen &= (distance < within) & (distance > -within)
    return tl.where(seen, logits, float("-inf"))


@triton.jit
def _forward_kernel(
    Q, K, V, Q_EXTRA, K_EXTRA, MEMBERS, FILLED, VISIBLE, MASK, OUT, LSE,
    q_batch, q_head, q_token_stride, k_batch, k_head, k_token_stride, v_batch, v_head,
    v_token_stride, x_batch, x_token_stride, y_batch, y_token_stride, mask_rows, N, G, S, width,
    wide, scale, itself, within, bh, H: tl.constexpr, R: tl.constexpr, BACK: tl.constexpr,
    LATER_BY: tl.constexpr, SHARED: tl.constexpr, WIDE: tl.constexpr, CAUSAL: tl.constexpr,
    WITHIN: tl.constexpr, ALONE: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Values and log-sum-exps of one tile of queries, by an online softmax over what it sees.

    Traffic of all programs: q, out once, k and v R times (from L2 where blocks are near), so
    B H N ((2 + 2 R) D + R P) numbers; 4 B H N R S (D + P) operations.
    """
    tiles = tl.cdiv(S, BLOCK_M)
    block = tl.program_id(0) // tiles
    row, batch, head, turn = _locate(tl.program_id(1), bh, H, SHARED)
    row = row.to(tl.int64)
    L = G + R - 1
    q_rank = (tl.program_id(0) % tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
    slot = (row * L + BACK + block) * S + q_rank
    q_valid = q_rank < S
    q_valid &= tl.load(FILLED + slot, mask=q_valid, other=0) != 0
    q_token = tl.load(MEMBERS + slot, mask=q_valid, other=0)
    q = _rows(Q + batch * q_batch + head * q_head, q_token, q_token_stride, width, BLOCK_D, q_valid)
    q_extra = q
    if WIDE:
        q_extra = _rows(Q_EXTRA + batch * x_batch, q_token, x_token_stride, wide, BLOCK_P, q_valid)
    alone = itself * tl.where(turn > 0, LATER_BY, 1.0)
    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    mask_row = MASK + ((row * G + block) * mask_rows + q_rank % mask_rows) * (R * S)
    live = False
    for entry in range(R):
        if tl.load(VISIBLE + (row * G + block) * R + entry) != 0:
            live = True
            for start in range(0, S, BLOCK_K):
                k_rank = start + tl.arange(0, BLOCK_K)
                k_slot = (row * L + block + entry) * S + k_rank
                k_valid = k_rank < S
                k_valid &= tl.load(FILLED + k_slot, mask=k_valid, other=0) != 0
                k_token = tl.load(MEMBERS + k_slot, mask=k_valid, other=0)
                k = _rows(
                    K + batch * k_batch + head * k_head, k_token, k_token_stride, width, BLOCK_D,
                    k_valid,
                )  # fmt: skip
                v = _rows(
                    V + batch * v_batch + head * v_head, k_token, v_token_stride, width, BLOCK_D,
                    k_valid,
                )  # fmt: skip
                k_extra = k
                if WIDE:
                    k_extra = _rows(
                        K_EXTRA + batch * y_batch, k_token, y_token_stride, wide, BLOCK_P, k_valid
                    )
                logits = _logits(
                    q, k, q_extra, k_extra, q_token, k_token, q_valid, k_valid, q_rank, k_rank,
                    entry, mask_row, S, R, scale, alone, within, BACK, WIDE, CAUSAL, WITHIN, ALONE,
                    MASKED, PRECISION,
                )  # fmt: skip
                now = tl.maximum(highest, tl.max(logits, 1))
                safe = tl.where(now == float("-inf"), 0.0, now)
                weights = tl.exp(logits - safe[:, None])
                fade = tl.exp(highest - safe)
                total = total * fade + tl.sum(weights, 1)
                out = out * fade[:, None]
                out += tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
                highest = now
    done = q_valid & live
    out = out / tl.where(total > 0, total, 1.0)[:, None]
    base = (turn.to(tl.int64) * bh + batch * H + head) * N
    _store(OUT + base * width, q_token, width, width, BLOCK_D, done, out.to(OUT.dtype.element_ty))
    sums = tl.where(total > 0, highest + tl.log(tl.where(total > 0, total, 1.0)), float("-inf"))
    tl.store(LSE + base + q_token, sums, mask=done)


@triton.jit
def _dq_kernel(
    Q, K, V, Q_EXTRA, K_EXTRA, MEMBERS, FILLED, VISIBLE, MASK, LSE, DELTA, GRAD, D_Q, D_Q_EXTRA,
    q_batch, q_head, q_token_stride, k_batch, k_head, k_token_stride, v_batch, v_head,
    v_token_stride, x_batch, x_token_stride, y_batch, y_token_stride, g_batch, g_head,
    g_token_stride, mask_rows, N, G, S, width, wide, scale, itself, within, bh, H: tl.constexpr,
    R: tl.constexpr, BACK: tl.constexpr, LATER_BY: tl.constexpr, SHARED: tl.constexpr,
    WIDE: tl.constexpr, CAUSAL: tl.constexpr, WITHIN: tl.constexpr, ALONE: tl.constexpr,
    MASKED: tl.constexpr, PRECISION: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Gradient of one tile of queries.

    Traffic as forward, and the gradient once; 6 B H N R S (D + P) operations.
    """
    tiles = tl.cdiv(S, BLOCK_M)
    block = tl.program_id(0) // tiles
    row, batch, head, turn = _locate(tl.program_id(1), bh, H, SHARED)
    row = row.to(tl.int64)
    L = G + R - 1
    q_rank = (tl.program_id(0) % tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
    slot = (row * L + BACK + block) * S + q_rank
    q_valid = q_rank < S
    q_valid &= tl.load(FILLED + slot, mask=q_valid, other=0) != 0
    q_token = tl.load(MEMBERS + slot, mask=q_valid, other=0)
    q = _rows(Q + batch * q_batch + head * q_head, q_token, q_token_stride, width, BLOCK_D, q_valid)
    grad = _rows(
        GRAD + batch * g_batch + head * g_head, q_token, g_token_stride, width, BLOCK_D, q_valid
    )
    q_extra = q
    if WIDE:
        q_extra = _rows(Q_EXTRA + batch * x_batch, q_token, x_token_stride, wide, BLOCK_P, q_valid)
    here = (batch * H + head) * N
    sums = tl.load(LSE + here + q_token, mask=q_valid, other=0.0)
    delta = tl.load(DELTA + here + q_token, mask=q_valid, other=0.0)
    alone = itself * tl.where(turn > 0, LATER_BY, 1.0)
    d_q = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    d_extra = tl.zeros([BLOCK_M, BLOCK_P], tl.float32)
    mask_row = MASK + ((row * G + block) * mask_rows + q_rank % mask_rows) * (R * S)
    live = False
    for entry in range(R):
        if tl.load(VISIBLE + (row * G + block) * R + entry) != 0:
            live = True
            for start in range(0, S, BLOCK_K):
                k_rank = start + tl.arange(0, BLOCK_K)
                k_slot = (row * L + block + entry) * S + k_rank
                k_valid = k_rank < S
                k_valid &= tl.load(FILLED + k_slot, mask=k_valid, other=0) != 0
                k_token = tl.load(MEMBERS + k_slot, mask=k_valid, other=0)
                k = _rows(
                    K + batch * k_batch + head * k_head, k_token, k_token_stride, width, BLOCK_D,
                    k_valid,
                )  # fmt: skip
                v = _rows(
                    V + batch * v_batch + head * v_head, k_token, v_token_stride, width, BLOCK_D,
                    k_valid,
                )  # fmt: skip
                k_extra = k
                if WIDE:
                    k_extra = _rows(
                        K_EXTRA + batch * y_batch, k_token, y_token_stride, wide, BLOCK_P, k_valid
                    )
                logits = _logits(
                    q, k, q_extra, k_extra, q_token, k_token, q_valid, k_valid, q_rank, k_rank,
                    entry, mask_row, S, R, scale, alone, within, BACK, WIDE, CAUSAL, WITHIN, ALONE,
                    MASKED, PRECISION,
                )  # fmt: skip
                weights = tl.exp(logits - sums[:, None])
                slope = tl.dot(grad, tl.trans(v), input_precision=PRECISION) - delta[:, None]
                slope = (weights * slope * scale).to(k.dtype)
                d_q += tl.dot(slope, k, input_precision=PRECISION)
                if WIDE:
                    d_extra += tl.dot(slope, k_extra, input_precision=PRECISION)
    done = q_valid & live
    base = (turn.to(tl.int64) * bh + batch * H + head) * N
    _store(D_Q + base * width, q_token, width, width, BLOCK_D, done, d_q.to(D_Q.dtype.element_ty))
    if WIDE:
        _store(D_Q_EXTRA + base * wide, q_token, wide, wide, BLOCK_P, done, d_extra)


@triton.jit
def _dkv_kernel(
    Q, K, V, Q_EXTRA, K_EXTRA, MEMBERS, FILLED, VISIBLE, HOMES, MASK, LSE, DELTA, GRAD, D_K, D_V,
    D_K_EXTRA, q_batch, q_head, q_token_stride, k_batch, k_head, k_token_stride, v_batch, v_head,
    v_token_stride, x_batch, x_token_stride, y_batch, y_token_stride, g_batch, g_head,
    g_token_stride, mask_rows, N, G, S, width, wide, scale, itself, within, bh, H: tl.constexpr,
    R: tl.constexpr, BACK: tl.constexpr, COPIES: tl.constexpr, LATER_BY: tl.constexpr,
    SHARED: tl.constexpr, WIDE: tl.constexpr, CAUSAL: tl.constexpr, WITHIN: tl.constexpr,
    ALONE: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Gradients of one tile of keys and values, from every block that sees theirs.

    Traffic: k, v and their gradients once, q and the gradient R times; 8 B H N R S (D + P)
    operations.
    """
    tiles = tl.cdiv(S, BLOCK_K)
    home = tl.program_id(0) // tiles
    row, batch, head, turn = _locate(tl.program_id(1), bh, H, SHARED)
    row = row.to(tl.int64)
    L = G + R - 1
    k_rank = (tl.program_id(0) % tiles) * BLOCK_K + tl.arange(0, BLOCK_K)
    slot = (row * L + BACK + home) * S + k_rank
    k_valid = k_rank < S
    k_valid &= tl.load(FILLED + slot, mask=k_valid, other=0) != 0
    k_token = tl.load(MEMBERS + slot, mask=k_valid, other=0)
    k = _rows(K + batch * k_batch + head * k_head, k_token, k_token_stride, width, BLOCK_D, k_valid)
    v = _rows(V + batch * v_batch + head * v_head, k_token, v_token_stride, width, BLOCK_D, k_valid)
    k_extra = k
    if WIDE:
        k_extra = _rows(K_EXTRA + batch * y_batch, k_token, y_token_stride, wide, BLOCK_P, k_valid)
    alone = itself * tl.where(turn > 0, LATER_BY, 1.0)
    d_k = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    d_v = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    d_extra = tl.zeros([BLOCK_K, BLOCK_P], tl.float32)
    here = (batch * H + head) * N
    used = False
    for copy in range(COPIES):
        place = tl.load(HOMES + (row * G + home) * COPIES + copy)
        used |= (copy == 0) & (place >= 0)
        for entry in range(R):
            block = place - entry
            near = (place >= 0) & (block >= 0) & (block < G)
            at = tl.where(near, (row * G + block) * R + entry, 0)
            if near & (tl.load(VISIBLE + at) != 0):
                for start in range(0, S, BLOCK_M):
                    q_rank = start + tl.arange(0, BLOCK_M)
                    q_slot = (row * L + BACK + block) * S + q_rank
                    q_valid = q_rank < S
                    q_valid &= tl.load(FILLED + q_slot, mask=q_valid, other=0) != 0
                    q_token = tl.load(MEMBERS + q_slot, mask=q_valid, other=0)
                    q = _rows(
                        Q + batch * q_batch + head * q_head, q_token, q_token_stride, width,
                        BLOCK_D, q_valid,
                    )  # fmt: skip
                    grad = _rows(
                        GRAD + batch * g_batch + head * g_head, q_token, g_token_stride, width,
                        BLOCK_D, q_valid,
                    )  # fmt: skip
                    q_extra = q
                    if WIDE:
                        q_extra = _rows(
                            Q_EXTRA + batch * x_batch, q_token, x_token_stride, wide, BLOCK_P,
                            q_valid,
                        )  # fmt: skip
                    mask_row = MASK + (
                        (row * G + block) * mask_rows + q_rank % mask_rows
                    ) * (R * S)  # fmt: skip
                    logits = _logits(
                        q, k, q_extra, k_extra, q_token, k_token, q_valid, k_valid, q_rank, k_rank,
                        entry, mask_row, S, R, scale, alone, within, BACK, WIDE, CAUSAL, WITHIN,
                        ALONE, MASKED, PRECISION,
                    )  # fmt: skip
                    sums = tl.load(LSE + here + q_token, mask=q_valid, other=0.0)
                    delta = tl.load(DELTA + here + q_token, mask=q_valid, other=0.0)
                    weights = tl.exp(logits - sums[:, None])
                    d_v += tl.dot(tl.trans(weights.to(grad.dtype)), grad, input_precision=PRECISION)
                    slope = tl.dot(grad, tl.trans(v), input_precision=PRECISION) - delta[:, None]
                    slope = tl.trans((weights * slope * scale).to(q.dtype))
                    d_k += tl.dot(slope, q, input_precision=PRECISION)
                    if WIDE:
                        d_extra += tl.dot(slope, q_extra, input_precision=PRECISION)
    done = k_valid & used
    base = (turn.to(tl.int64) * bh + batch * H + head) * N
    _store(D_K + base * width, k_token, width, width, BLOCK_D, done, d_k.to(D_K.dtype.element_ty))
    _store(D_V + base * width, k_token, width, width, BLOCK_D, done, d_v.to(D_V.dtype.element_ty))
    if WIDE:
        _store(D_K_EXTRA + base * wide, k_token, wide, wide, BLOCK_P, done, d_extra)


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
    _forward_kernel[_grid(visible, members, shapes.queries, rounds * batch * heads)](
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
    _dq_kernel[_grid(visible, members, shapes.queries, programs)](
        q, k, v, q_extra, k_extra, members, filled, visible, mask, sums, delta, grad, d_q,
        d_q_extra, *strides, *sizes, **constants,
    )  # fmt: skip
    _dkv_kernel[_grid(visible, members, shapes.keys, programs)](
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


def _setup(ctx, inputs, output) -> None:
    tensors, ctx.options = inputs[:10], inputs[10:]
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx, grad: Tensor, _: Tensor):
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
