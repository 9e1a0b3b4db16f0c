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
def _locate(tiles, bh, H: tl.constexpr, SHARED: tl.constexpr):
    """Tile, row of Blocks, sequence, head and round of this program; neighbours share a head."""
    pid = tl.program_id(0) // tiles
    batch = (pid % bh) // H
    row = (batch if SHARED else pid).to(tl.int64)
    return tl.program_id(0) % tiles, row, batch.to(tl.int64), (pid % H).to(tl.int64), pid // bh


@triton.jit
def _tokens(members, first, rank, S, LONG: tl.constexpr):
    """Which slots of a block that begins at slot `first` hold a token, and which token."""
    token = tl.load(members + first + rank, mask=rank < S, other=-1)
    return token >= 0, (token.to(tl.int64) if LONG else token)


@triton.jit
def _rows(pointer, token, stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr, valid):
    """Rows of tokens, (tile, BLOCK), zeros where not valid or beyond the width."""
    column = tl.arange(0, BLOCK)
    mask = valid[:, None]
    if WIDTH < BLOCK:
        mask &= (column < WIDTH)[None, :]
    return tl.load(pointer + token[:, None] * stride + column[None, :], mask=mask, other=0.0)


@triton.jit
def _store(pointer, token, WIDTH: tl.constexpr, BLOCK: tl.constexpr, valid, rows):
    """Store rows of tokens, which lie on end; likewise."""
    column = tl.arange(0, BLOCK)
    mask = valid[:, None]
    if WIDTH < BLOCK:
        mask &= (column < WIDTH)[None, :]
    rows = rows.to(pointer.dtype.element_ty)
    tl.store(pointer + token[:, None] * WIDTH + column[None, :], rows, mask=mask)


@triton.jit
def _logits(
    q, k, q_extra, k_extra, q_token, k_token, q_rank, k_rank, seen, entry, MASK, mask_rows, S, R,
    scale, alone, within, BACK: tl.constexpr, WIDE: tl.constexpr, CAUSAL: tl.constexpr,
    WITHIN: tl.constexpr, ALONE: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Logits (M, K) of a tile of queries with a tile of one block's keys; -inf where unseen.

    Args:
        seen: Which slots of the streamed side hold a token. Those of the own side that do not are
            rows of zeros, whose results are not stored.
    """
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if WIDE:
        logits += tl.dot(q_extra, tl.trans(k_extra), input_precision=PRECISION)
    logits *= scale
    if ALONE:
        own = (entry == BACK) & (q_rank[:, None] == k_rank[None, :])
        logits += tl.where(own, alone, 0.0)
        # beside a log-sum-exp as low as a last resort, an empty slot of the own side would overflow
        seen &= (q_token >= 0)[:, None] & (k_token >= 0)[None, :]
    if MASKED:
        at = ((q_rank % mask_rows) * (R * S))[:, None] + (entry * S + k_rank)[None, :]
        inside = (q_rank < S)[:, None] & (k_rank < S)[None, :]
        seen &= tl.load(MASK + at, mask=inside, other=0) != 0
    if CAUSAL:
        seen &= k_token[None, :] <= q_token[:, None]
    if WITHIN:
        distance = (entry - BACK) * S + k_rank[None, :] - q_rank[:, None]
        seen &= tl.abs(distance) < within
    return tl.where(seen, logits, float("-inf"))


@triton.jit
def forward_kernel(
    Q, K, V, Q_EXTRA, K_EXTRA, MEMBERS, VISIBLE, MASK, OUT, LSE,
    q_batch, q_head, q_token_stride, k_batch, k_head, k_token_stride, v_batch, v_head,
    v_token_stride, x_batch, x_token_stride, y_batch, y_token_stride, mask_rows, N, G, S, scale,
    itself, within, bh, H: tl.constexpr, R: tl.constexpr, BACK: tl.constexpr,
    LATER_BY: tl.constexpr, SHARED: tl.constexpr, LONG: tl.constexpr, WIDTH: tl.constexpr,
    WIDE: tl.constexpr, CAUSAL: tl.constexpr, WITHIN: tl.constexpr, ALONE: tl.constexpr,
    MASKED: tl.constexpr, PRECISION: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Values and log-sum-exps of one tile of queries, by an online softmax over what it sees.

    Traffic: B H N ((4 D + 2 P) i + 8) bytes of i a number: q, k, v, out, extra columns; k and v
    come R times, but from L2 where blocks are near. B H N R S (4 D + 2 P) operations.
    """
    tiles = tl.cdiv(S, BLOCK_M)
    tile, row, batch, head, turn = _locate(G * tiles, bh, H, SHARED)
    block = tile // tiles
    L = G + R - 1
    Q += batch * q_batch + head * q_head
    K += batch * k_batch + head * k_head
    V += batch * v_batch + head * v_head
    Q_EXTRA += batch * x_batch
    K_EXTRA += batch * y_batch
    q_rank = (tile % tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
    q_valid, q_token = _tokens(MEMBERS, (row * L + BACK + block) * S, q_rank, S, LONG)
    q = _rows(Q, q_token, q_token_stride, WIDTH, BLOCK_D, q_valid)
    q_extra = q
    if WIDE:
        q_extra = _rows(Q_EXTRA, q_token, x_token_stride, WIDE, BLOCK_P, q_valid)
    alone = itself * tl.where(turn > 0, LATER_BY, 1.0)
    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    MASK += (row * G + block) * mask_rows * (R * S)
    VISIBLE += (row * G + block) * R
    live = tl.load(VISIBLE + BACK) != 0
    passes = tl.cdiv(S, BLOCK_K)
    for step in range(tl.where(live, R * passes, 0)):
        entry = step // passes
        k_rank = (step % passes) * BLOCK_K + tl.arange(0, BLOCK_K)
        k_valid, k_token = _tokens(MEMBERS, (row * L + block + entry) * S, k_rank, S, LONG)
        k_valid &= tl.load(VISIBLE + entry) != 0
        k = _rows(K, k_token, k_token_stride, WIDTH, BLOCK_D, k_valid)
        v = _rows(V, k_token, v_token_stride, WIDTH, BLOCK_D, k_valid)
        k_extra = k
        if WIDE:
            k_extra = _rows(K_EXTRA, k_token, y_token_stride, WIDE, BLOCK_P, k_valid)
        logits = _logits(
            q, k, q_extra, k_extra, q_token, k_token, q_rank, k_rank, k_valid[None, :], entry,
            MASK, mask_rows, S, R, scale, alone, within, BACK, WIDE, CAUSAL, WITHIN, ALONE, MASKED,
            PRECISION,
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
    _store(OUT + base * WIDTH, q_token, WIDTH, BLOCK_D, done, out)
    sums = tl.where(total > 0, highest + tl.log(tl.where(total > 0, total, 1.0)), float("-inf"))
    tl.store(LSE + base + q_token, sums, mask=done)


@triton.jit
def dq_kernel(
    Q, K, V, Q_EXTRA, K_EXTRA, MEMBERS, VISIBLE, MASK, OUT, LSE, GRAD, DELTA, D_Q, D_Q_EXTRA,
    q_batch, q_head, q_token_stride, k_batch, k_head, k_token_stride, v_batch, v_head,
    v_token_stride, x_batch, x_token_stride, y_batch, y_token_stride, g_batch, g_head,
    g_token_stride, mask_rows, N, G, S, scale, itself, within, bh, H: tl.constexpr,
    R: tl.constexpr, BACK: tl.constexpr, LATER_BY: tl.constexpr, SHARED: tl.constexpr,
    LONG: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, CAUSAL: tl.constexpr,
    WITHIN: tl.constexpr, ALONE: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Gradient of one tile of queries, and DELTA, what each token's gradient has of its value.

    Traffic: B H N ((6 D + 2 P) i + 4 P + 12) bytes, those of forward, the gradient of out and, in
    float32, of the extra columns. B H N R S (6 D + 4 P) operations.
    """
    tiles = tl.cdiv(S, BLOCK_M)
    tile, row, batch, head, turn = _locate(G * tiles, bh, H, SHARED)
    block = tile // tiles
    L = G + R - 1
    Q += batch * q_batch + head * q_head
    K += batch * k_batch + head * k_head
    V += batch * v_batch + head * v_head
    GRAD += batch * g_batch + head * g_head
    Q_EXTRA += batch * x_batch
    K_EXTRA += batch * y_batch
    here = (batch * H + head) * N
    q_rank = (tile % tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
    q_valid, q_token = _tokens(MEMBERS, (row * L + BACK + block) * S, q_rank, S, LONG)
    q = _rows(Q, q_token, q_token_stride, WIDTH, BLOCK_D, q_valid)
    grad = _rows(GRAD, q_token, g_token_stride, WIDTH, BLOCK_D, q_valid)
    out = _rows(OUT + here * WIDTH, q_token, WIDTH, WIDTH, BLOCK_D, q_valid)
    delta = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(DELTA + here + q_token, delta, mask=q_valid & (turn == 0))
    q_extra = q
    if WIDE:
        q_extra = _rows(Q_EXTRA, q_token, x_token_stride, WIDE, BLOCK_P, q_valid)
    sums = tl.load(LSE + here + q_token, mask=q_valid, other=0.0)
    alone = itself * tl.where(turn > 0, LATER_BY, 1.0)
    d_q = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    d_extra = tl.zeros([BLOCK_M, BLOCK_P], tl.float32)
    MASK += (row * G + block) * mask_rows * (R * S)
    VISIBLE += (row * G + block) * R
    live = tl.load(VISIBLE + BACK) != 0
    passes = tl.cdiv(S, BLOCK_K)
    for step in range(tl.where(live, R * passes, 0)):
        entry = step // passes
        k_rank = (step % passes) * BLOCK_K + tl.arange(0, BLOCK_K)
        k_valid, k_token = _tokens(MEMBERS, (row * L + block + entry) * S, k_rank, S, LONG)
        k_valid &= tl.load(VISIBLE + entry) != 0
        k = _rows(K, k_token, k_token_stride, WIDTH, BLOCK_D, k_valid)
        v = _rows(V, k_token, v_token_stride, WIDTH, BLOCK_D, k_valid)
        k_extra = k
        if WIDE:
            k_extra = _rows(K_EXTRA, k_token, y_token_stride, WIDE, BLOCK_P, k_valid)
        logits = _logits(
            q, k, q_extra, k_extra, q_token, k_token, q_rank, k_rank, k_valid[None, :], entry,
            MASK, mask_rows, S, R, scale, alone, within, BACK, WIDE, CAUSAL, WITHIN, ALONE, MASKED,
            PRECISION,
        )  # fmt: skip
        weights = tl.exp(logits - sums[:, None])
        slope = tl.dot(grad, tl.trans(v), input_precision=PRECISION) - delta[:, None]
        slope = (weights * slope * scale).to(k.dtype)
        d_q += tl.dot(slope, k, input_precision=PRECISION)
        if WIDE:
            d_extra += tl.dot(slope, k_extra, input_precision=PRECISION)
    done = q_valid & live
    base = (turn.to(tl.int64) * bh + batch * H + head) * N
    _store(D_Q + base * WIDTH, q_token, WIDTH, BLOCK_D, done, d_q)
    if WIDE:
        _store(D_Q_EXTRA + base * WIDE, q_token, WIDE, BLOCK_P, done, d_extra)


@triton.jit
def dkv_kernel(
    Q, K, V, Q_EXTRA, K_EXTRA, MEMBERS, VISIBLE, HOMES, MASK, LSE, GRAD, DELTA, D_K, D_V,
    D_K_EXTRA, q_batch, q_head, q_token_stride, k_batch, k_head, k_token_stride, v_batch, v_head,
    v_token_stride, x_batch, x_token_stride, y_batch, y_token_stride, g_batch, g_head,
    g_token_stride, mask_rows, N, G, S, scale, itself, within, bh, H: tl.constexpr,
    R: tl.constexpr, BACK: tl.constexpr, LATER_BY: tl.constexpr, SHARED: tl.constexpr,
    LONG: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, CAUSAL: tl.constexpr,
    WITHIN: tl.constexpr, ALONE: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
    COPIES: tl.constexpr,
):  # fmt: skip
    """Gradients of one tile of keys and values, from every block that sees theirs.

    Traffic: B H N ((6 D + 2 P) i + 4 P + 12) bytes; q and the gradient come R times, but from L2
    where blocks are near. B H N R S (8 D + 4 P) operations.
    """
    tiles = tl.cdiv(S, BLOCK_K)
    tile, row, batch, head, turn = _locate(G * tiles, bh, H, SHARED)
    home = tile // tiles
    L = G + R - 1
    Q += batch * q_batch + head * q_head
    K += batch * k_batch + head * k_head
    V += batch * v_batch + head * v_head
    GRAD += batch * g_batch + head * g_head
    Q_EXTRA += batch * x_batch
    K_EXTRA += batch * y_batch
    here = (batch * H + head) * N
    k_rank = (tile % tiles) * BLOCK_K + tl.arange(0, BLOCK_K)
    k_valid, k_token = _tokens(MEMBERS, (row * L + BACK + home) * S, k_rank, S, LONG)
    k = _rows(K, k_token, k_token_stride, WIDTH, BLOCK_D, k_valid)
    v = _rows(V, k_token, v_token_stride, WIDTH, BLOCK_D, k_valid)
    k_extra = k
    if WIDE:
        k_extra = _rows(K_EXTRA, k_token, y_token_stride, WIDE, BLOCK_P, k_valid)
    alone = itself * tl.where(turn > 0, LATER_BY, 1.0)
    d_k = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    d_v = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    d_extra = tl.zeros([BLOCK_K, BLOCK_P], tl.float32)
    HOMES += (row * G + home) * COPIES
    passes = tl.cdiv(S, BLOCK_M)
    for copy in range(COPIES):
        place = tl.load(HOMES + copy)
        for step in range(tl.where(place >= 0, R * passes, 0)):
            entry = step // passes
            block = place - entry
            near = (block >= 0) & (block < G)
            block = tl.where(near, block, 0)
            near &= tl.load(VISIBLE + (row * G + block) * R + entry) != 0
            q_rank = (step % passes) * BLOCK_M + tl.arange(0, BLOCK_M)
            q_valid, q_token = _tokens(MEMBERS, (row * L + BACK + block) * S, q_rank, S, LONG)
            q_valid &= near
            q = _rows(Q, q_token, q_token_stride, WIDTH, BLOCK_D, q_valid)
            grad = _rows(GRAD, q_token, g_token_stride, WIDTH, BLOCK_D, q_valid)
            q_extra = q
            if WIDE:
                q_extra = _rows(Q_EXTRA, q_token, x_token_stride, WIDE, BLOCK_P, q_valid)
            logits = _logits(
                q, k, q_extra, k_extra, q_token, k_token, q_rank, k_rank, q_valid[:, None], entry,
                MASK + (row * G + block) * mask_rows * (R * S), mask_rows, S, R, scale, alone,
                within, BACK, WIDE, CAUSAL, WITHIN, ALONE, MASKED, PRECISION,
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
    done = k_valid & (tl.load(HOMES) >= 0)
    base = (turn.to(tl.int64) * bh + batch * H + head) * N
    _store(D_K + base * WIDTH, k_token, WIDTH, BLOCK_D, done, d_k)
    _store(D_V + base * WIDTH, k_token, WIDTH, BLOCK_D, done, d_v)
    if WIDE:
        _store(D_K_EXTRA + base * WIDE, k_token, WIDE, BLOCK_P, done, d_extra)
