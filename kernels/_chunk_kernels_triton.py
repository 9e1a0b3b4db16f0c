"""The kernels of chunk attention in Triton: they gather rows themselves, and their stores resort.

B batch   H heads   N tokens   D head width   P width of the extra columns
Z rows of `Blocks` (B, or rounds * B * H)   G blocks   S slots a block   R blocks seen
M queries, K keys of one tile

A program owns the queries (forward, dq) or the keys (dk, dv) of one tile of one block and head.
Every token stands in one own slot a round, so no two programs write one row: no atomics, and the
same bits from run to run.
"""

import triton
import triton.language as tl


@triton.jit
def _locate(pid, rounds_bh, H: tl.constexpr, SHARED: tl.constexpr):
    """Row of Blocks, sequence, head and round of a program."""
    bh = pid % rounds_bh
    batch = bh // H
    head = bh % H
    return (batch if SHARED else pid), batch.to(tl.int64), head.to(tl.int64), pid // rounds_bh


@triton.jit
def _tokens(members, filled, first, rank, S):
    """Which slots of a block that begins at slot `first` hold a token, and which token."""
    valid = rank < S
    valid &= tl.load(filled + first + rank, mask=valid, other=0) != 0
    return valid, tl.load(members + first + rank, mask=valid, other=0)


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
def forward_kernel(
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
    q_valid, q_token = _tokens(MEMBERS, FILLED, (row * L + BACK + block) * S, q_rank, S)
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
                k_valid, k_token = _tokens(
                    MEMBERS, FILLED, (row * L + block + entry) * S, k_rank, S
                )
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
def dq_kernel(
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
    q_valid, q_token = _tokens(MEMBERS, FILLED, (row * L + BACK + block) * S, q_rank, S)
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
                k_valid, k_token = _tokens(
                    MEMBERS, FILLED, (row * L + block + entry) * S, k_rank, S
                )
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
def dkv_kernel(
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
    k_valid, k_token = _tokens(MEMBERS, FILLED, (row * L + BACK + home) * S, k_rank, S)
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
                    q_valid, q_token = _tokens(
                        MEMBERS, FILLED, (row * L + BACK + block) * S, q_rank, S
                    )
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
