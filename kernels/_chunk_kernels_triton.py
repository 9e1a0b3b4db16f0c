"""The kernels of chunk attention in Triton: they gather rows themselves, and their stores resort.

B batch   H heads   N tokens   D head width   A additional columns   S block size
R hash rounds   G blocks   J blocks that a block sees   i bytes of a number

A program owns the queries (forward, dq) or the keys (dk, dv) of one tile of one block and head.
Every token has one own slot per round, so no two programs write one row: no atomics, and the
same bits from run to run. Pointers are p_*, loaded blocks b_*; m_i, l_i and alpha are the running
maximum, sum and rescaling of the online softmax.
"""

import triton
import triton.language as tl


@triton.jit
def _locate(tiles, bh, H: tl.constexpr, SHARED: tl.constexpr):
    """Find tile, row of `Blocks`, sequence, head and hash round; neighbours share a head."""
    pid = tl.program_id(0) // tiles
    batch = (pid % bh) // H
    row = (batch if SHARED else pid).to(tl.int64)
    return tl.program_id(0) % tiles, row, batch.to(tl.int64), (pid % H).to(tl.int64), pid // bh


@triton.jit
def _load_tokens(members, first, rank, S, LONG: tl.constexpr):
    """Load the tokens of a block that begins at slot `first`, and whether each slot holds one."""
    token = tl.load(members + first + rank, mask=rank < S, other=-1)
    return token >= 0, (token.to(tl.int64) if LONG else token)


@triton.jit
def _load_rows(pointer, token, stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr, valid):
    """Load rows of tokens, (tile, BLOCK), zeros where not valid or beyond the width."""
    column = tl.arange(0, BLOCK)
    mask = valid[:, None]
    if WIDTH < BLOCK:
        mask &= (column < WIDTH)[None, :]
    return tl.load(pointer + token[:, None] * stride + column[None, :], mask=mask, other=0.0)


@triton.jit
def _store_rows(pointer, token, WIDTH: tl.constexpr, BLOCK: tl.constexpr, valid, rows):
    """Store contiguous rows of tokens; likewise."""
    column = tl.arange(0, BLOCK)
    mask = valid[:, None]
    if WIDTH < BLOCK:
        mask &= (column < WIDTH)[None, :]
    rows = rows.to(pointer.dtype.element_ty)
    tl.store(pointer + token[:, None] * WIDTH + column[None, :], rows, mask=mask)


@triton.jit
def _scores(
    b_q, b_k, b_q_extra, b_k_extra, q_token, k_token, q_rank, k_rank, seen, j, p_mask, S, J,
    scale, round_bias, within, LOOK_BACK: tl.constexpr, EXTRA: tl.constexpr,
    CAUSAL: tl.constexpr, WITHIN: tl.constexpr, SELF_BIAS: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Logits (BLOCK_Q, BLOCK_KV) of a tile of queries with a tile of keys; -inf where unseen.

    Args:
        seen: True for slots of the streamed side that hold a token. Empty slots of the own side
            are rows of zeros, whose results are not stored.
        MASKED: 0 without a mask, 1 with one row of it for a block, 2 with one for each query.
    """
    b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
    if EXTRA:
        b_s += tl.dot(b_q_extra, tl.trans(b_k_extra), input_precision=PRECISION)
    b_s *= scale
    if SELF_BIAS:
        own = (j == LOOK_BACK) & (q_rank[:, None] == k_rank[None, :])
        b_s += tl.where(own, round_bias, 0.0)
        # beside a log-sum-exp as low as a last resort, an empty slot of the own side would overflow
        seen &= (q_token >= 0)[:, None] & (k_token >= 0)[None, :]
    if MASKED:
        at = (j * S + tl.minimum(k_rank, S - 1))[None, :]  # a predicate would take registers
        if MASKED == 2:
            at += (tl.minimum(q_rank, S - 1) * (J * S))[:, None]
        seen &= tl.load(p_mask + at) != 0
    if CAUSAL:
        seen &= k_token[None, :] <= q_token[:, None]
    if WITHIN:
        distance = (j - LOOK_BACK) * S + k_rank[None, :] - q_rank[:, None]
        seen &= tl.abs(distance) < within
    return tl.where(seen, b_s, float("-inf"))


@triton.jit
def forward_kernel(
    p_q, p_k, p_v, p_q_extra, p_k_extra, p_members, p_visible, p_mask, p_out, p_lse, q_batch,
    q_head, q_stride, k_batch, k_head, k_stride, v_batch, v_head, v_stride, q_extra_batch,
    q_extra_stride, k_extra_batch, k_extra_stride, N, G, S, scale, self_bias, within, bh,
    H: tl.constexpr, J: tl.constexpr, LOOK_BACK: tl.constexpr, LATER_ROUNDS: tl.constexpr,
    SHARED: tl.constexpr, LONG: tl.constexpr, WIDTH: tl.constexpr, EXTRA: tl.constexpr,
    CAUSAL: tl.constexpr, WITHIN: tl.constexpr, SELF_BIAS: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_Q: tl.constexpr,
    BLOCK_KV: tl.constexpr,
):  # fmt: skip
    """Compute values and log-sum-exps of one tile of queries, by an online softmax.

    Traffic: B H N ((4 D + 2 A) i + 8) bytes: q, k, v, out, additional columns; k and v are read J
    times, but from L2 where blocks are near. B H N J S (4 D + 2 A) operations.
    """
    tiles = tl.cdiv(S, BLOCK_Q)
    tile, row, batch, head, hash_round = _locate(G * tiles, bh, H, SHARED)
    block = tile // tiles
    entries = G + J - 1
    p_q += batch * q_batch + head * q_head
    p_k += batch * k_batch + head * k_head
    p_v += batch * v_batch + head * v_head
    p_q_extra += batch * q_extra_batch
    p_k_extra += batch * k_extra_batch
    q_rank = (tile % tiles) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    first = (row * entries + LOOK_BACK + block) * S
    q_valid, q_token = _load_tokens(p_members, first, q_rank, S, LONG)
    b_q = _load_rows(p_q, q_token, q_stride, WIDTH, BLOCK_D, q_valid)
    b_q_extra = b_q
    if EXTRA:
        b_q_extra = _load_rows(p_q_extra, q_token, q_extra_stride, EXTRA, BLOCK_A, q_valid)
    round_bias = self_bias * tl.where(hash_round > 0, LATER_ROUNDS, 1.0)
    m_i = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_Q], tl.float32)
    b_o = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    p_mask += (row * G + block) * (S if MASKED == 2 else 1) * (J * S)
    p_visible += (row * G + block) * J
    live = tl.load(p_visible + LOOK_BACK) != 0
    passes = tl.cdiv(S, BLOCK_KV)
    for step in range(tl.where(live, J * passes, 0)):
        j = step // passes
        k_rank = (step % passes) * BLOCK_KV + tl.arange(0, BLOCK_KV)
        k_valid, k_token = _load_tokens(p_members, (row * entries + block + j) * S, k_rank, S, LONG)
        k_valid = tl.where(tl.load(p_visible + j) != 0, k_valid, False)
        b_k = _load_rows(p_k, k_token, k_stride, WIDTH, BLOCK_D, k_valid)
        b_v = _load_rows(p_v, k_token, v_stride, WIDTH, BLOCK_D, k_valid)
        b_k_extra = b_k
        if EXTRA:
            b_k_extra = _load_rows(p_k_extra, k_token, k_extra_stride, EXTRA, BLOCK_A, k_valid)
        b_s = _scores(
            b_q, b_k, b_q_extra, b_k_extra, q_token, k_token, q_rank, k_rank, k_valid[None, :], j,
            p_mask, S, J, scale, round_bias, within, LOOK_BACK, EXTRA, CAUSAL, WITHIN,
            SELF_BIAS, MASKED, PRECISION,
        )  # fmt: skip
        m_new = tl.maximum(m_i, tl.max(b_s, 1))
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        b_p = tl.exp(b_s - m_safe[:, None])
        alpha = tl.exp(m_i - m_safe)
        l_i = l_i * alpha + tl.sum(b_p, 1)
        b_o = b_o * alpha[:, None]
        b_o += tl.dot(b_p.to(b_v.dtype), b_v, input_precision=PRECISION)
        m_i = m_new
    stored = tl.where(live, q_valid, False)
    b_o = b_o / tl.where(l_i > 0, l_i, 1.0)[:, None]
    out_start = (hash_round.to(tl.int64) * bh + batch * H + head) * N
    _store_rows(p_out + out_start * WIDTH, q_token, WIDTH, BLOCK_D, stored, b_o)
    b_lse = tl.where(l_i > 0, m_i + tl.log(tl.where(l_i > 0, l_i, 1.0)), float("-inf"))
    tl.store(p_lse + out_start + q_token, b_lse, mask=stored)


@triton.jit
def dq_kernel(
    p_q, p_k, p_v, p_q_extra, p_k_extra, p_members, p_visible, p_mask, p_out, p_lse, p_do, p_delta,
    p_dq, p_dq_extra, q_batch, q_head, q_stride, k_batch, k_head, k_stride, v_batch, v_head,
    v_stride, q_extra_batch, q_extra_stride, k_extra_batch, k_extra_stride, do_batch, do_head,
    do_stride, N, G, S, scale, self_bias, within, bh, H: tl.constexpr, J: tl.constexpr,
    LOOK_BACK: tl.constexpr, LATER_ROUNDS: tl.constexpr, SHARED: tl.constexpr, LONG: tl.constexpr,
    WIDTH: tl.constexpr, EXTRA: tl.constexpr, CAUSAL: tl.constexpr, WITHIN: tl.constexpr,
    SELF_BIAS: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_A: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_KV: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of one tile of queries, and delta = sum(do * out) of each token.

    Traffic: B H N ((6 D + 2 A) i + 4 A + 12) bytes: those of forward, the gradient of out and, in
    float32, of the additional columns. B H N J S (6 D + 4 A) operations.
    """
    tiles = tl.cdiv(S, BLOCK_Q)
    tile, row, batch, head, hash_round = _locate(G * tiles, bh, H, SHARED)
    block = tile // tiles
    entries = G + J - 1
    p_q += batch * q_batch + head * q_head
    p_k += batch * k_batch + head * k_head
    p_v += batch * v_batch + head * v_head
    p_do += batch * do_batch + head * do_head
    p_q_extra += batch * q_extra_batch
    p_k_extra += batch * k_extra_batch
    row_start = (batch * H + head) * N
    q_rank = (tile % tiles) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    first = (row * entries + LOOK_BACK + block) * S
    q_valid, q_token = _load_tokens(p_members, first, q_rank, S, LONG)
    b_q = _load_rows(p_q, q_token, q_stride, WIDTH, BLOCK_D, q_valid)
    b_do = _load_rows(p_do, q_token, do_stride, WIDTH, BLOCK_D, q_valid)
    b_o = _load_rows(p_out + row_start * WIDTH, q_token, WIDTH, WIDTH, BLOCK_D, q_valid)
    b_delta = tl.sum(b_do.to(tl.float32) * b_o.to(tl.float32), 1)
    if hash_round == 0:
        tl.store(p_delta + row_start + q_token, b_delta, mask=q_valid)
    b_q_extra = b_q
    if EXTRA:
        b_q_extra = _load_rows(p_q_extra, q_token, q_extra_stride, EXTRA, BLOCK_A, q_valid)
    b_lse = tl.load(p_lse + row_start + q_token, mask=q_valid, other=0.0)
    round_bias = self_bias * tl.where(hash_round > 0, LATER_ROUNDS, 1.0)
    b_dq = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    b_dextra = tl.zeros([BLOCK_Q, BLOCK_A], tl.float32)
    p_mask += (row * G + block) * (S if MASKED == 2 else 1) * (J * S)
    p_visible += (row * G + block) * J
    live = tl.load(p_visible + LOOK_BACK) != 0
    passes = tl.cdiv(S, BLOCK_KV)
    for step in range(tl.where(live, J * passes, 0)):
        j = step // passes
        k_rank = (step % passes) * BLOCK_KV + tl.arange(0, BLOCK_KV)
        k_valid, k_token = _load_tokens(p_members, (row * entries + block + j) * S, k_rank, S, LONG)
        k_valid = tl.where(tl.load(p_visible + j) != 0, k_valid, False)
        b_k = _load_rows(p_k, k_token, k_stride, WIDTH, BLOCK_D, k_valid)
        b_v = _load_rows(p_v, k_token, v_stride, WIDTH, BLOCK_D, k_valid)
        b_k_extra = b_k
        if EXTRA:
            b_k_extra = _load_rows(p_k_extra, k_token, k_extra_stride, EXTRA, BLOCK_A, k_valid)
        b_s = _scores(
            b_q, b_k, b_q_extra, b_k_extra, q_token, k_token, q_rank, k_rank, k_valid[None, :], j,
            p_mask, S, J, scale, round_bias, within, LOOK_BACK, EXTRA, CAUSAL, WITHIN,
            SELF_BIAS, MASKED, PRECISION,
        )  # fmt: skip
        b_p = tl.exp(b_s - b_lse[:, None])
        b_ds = tl.dot(b_do, tl.trans(b_v), input_precision=PRECISION) - b_delta[:, None]
        b_ds = (b_p * b_ds * scale).to(b_k.dtype)
        b_dq += tl.dot(b_ds, b_k, input_precision=PRECISION)
        if EXTRA:
            b_dextra += tl.dot(b_ds, b_k_extra, input_precision=PRECISION)
    stored = tl.where(live, q_valid, False)
    out_start = (hash_round.to(tl.int64) * bh + batch * H + head) * N
    _store_rows(p_dq + out_start * WIDTH, q_token, WIDTH, BLOCK_D, stored, b_dq)
    if EXTRA:
        _store_rows(p_dq_extra + out_start * EXTRA, q_token, EXTRA, BLOCK_A, stored, b_dextra)


@triton.jit
def dkv_kernel(
    p_q, p_k, p_v, p_q_extra, p_k_extra, p_members, p_visible, p_own_entries, p_mask, p_lse, p_do,
    p_delta, p_dk, p_dv, p_dk_extra, q_batch, q_head, q_stride, k_batch, k_head, k_stride, v_batch,
    v_head, v_stride, q_extra_batch, q_extra_stride, k_extra_batch, k_extra_stride, do_batch,
    do_head, do_stride, N, G, S, scale, self_bias, within, bh, H: tl.constexpr,
    J: tl.constexpr, LOOK_BACK: tl.constexpr, LATER_ROUNDS: tl.constexpr, SHARED: tl.constexpr,
    LONG: tl.constexpr, WIDTH: tl.constexpr, EXTRA: tl.constexpr, CAUSAL: tl.constexpr,
    WITHIN: tl.constexpr, SELF_BIAS: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_KV: tl.constexpr,
    COPIES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of one tile of keys and values, from every block that sees them.

    Traffic: B H N ((6 D + 2 A) i + 4 A + 12) bytes; q and the gradient are read J times, but from
    L2 where blocks are near. B H N J S (8 D + 4 A) operations.
    """
    tiles = tl.cdiv(S, BLOCK_KV)
    tile, row, batch, head, hash_round = _locate(G * tiles, bh, H, SHARED)
    own_block = tile // tiles
    entries = G + J - 1
    p_q += batch * q_batch + head * q_head
    p_k += batch * k_batch + head * k_head
    p_v += batch * v_batch + head * v_head
    p_do += batch * do_batch + head * do_head
    p_q_extra += batch * q_extra_batch
    p_k_extra += batch * k_extra_batch
    row_start = (batch * H + head) * N
    k_rank = (tile % tiles) * BLOCK_KV + tl.arange(0, BLOCK_KV)
    first = (row * entries + LOOK_BACK + own_block) * S
    k_valid, k_token = _load_tokens(p_members, first, k_rank, S, LONG)
    b_k = _load_rows(p_k, k_token, k_stride, WIDTH, BLOCK_D, k_valid)
    b_v = _load_rows(p_v, k_token, v_stride, WIDTH, BLOCK_D, k_valid)
    b_k_extra = b_k
    if EXTRA:
        b_k_extra = _load_rows(p_k_extra, k_token, k_extra_stride, EXTRA, BLOCK_A, k_valid)
    round_bias = self_bias * tl.where(hash_round > 0, LATER_ROUNDS, 1.0)
    b_dk = tl.zeros([BLOCK_KV, BLOCK_D], tl.float32)
    b_dv = tl.zeros([BLOCK_KV, BLOCK_D], tl.float32)
    b_dextra = tl.zeros([BLOCK_KV, BLOCK_A], tl.float32)
    p_own_entries += (row * G + own_block) * COPIES
    passes = tl.cdiv(S, BLOCK_Q)
    for copy in range(COPIES):
        own_entry = tl.load(p_own_entries + copy)
        for step in range(tl.where(own_entry >= 0, J * passes, 0)):
            j = step // passes
            block = own_entry - j
            exists = (block >= 0) & (block < G)
            block = tl.where(exists, block, 0)
            exists &= tl.load(p_visible + (row * G + block) * J + j) != 0
            q_rank = (step % passes) * BLOCK_Q + tl.arange(0, BLOCK_Q)
            first = (row * entries + LOOK_BACK + block) * S
            q_valid, q_token = _load_tokens(p_members, first, q_rank, S, LONG)
            q_valid = tl.where(exists, q_valid, False)
            b_q = _load_rows(p_q, q_token, q_stride, WIDTH, BLOCK_D, q_valid)
            b_do = _load_rows(p_do, q_token, do_stride, WIDTH, BLOCK_D, q_valid)
            b_q_extra = b_q
            if EXTRA:
                b_q_extra = _load_rows(p_q_extra, q_token, q_extra_stride, EXTRA, BLOCK_A, q_valid)
            b_s = _scores(
                b_q, b_k, b_q_extra, b_k_extra, q_token, k_token, q_rank, k_rank, q_valid[:, None],
                j, p_mask + (row * G + block) * (S if MASKED == 2 else 1) * (J * S), S, J, scale,
                round_bias, within, LOOK_BACK, EXTRA, CAUSAL, WITHIN, SELF_BIAS, MASKED, PRECISION,
            )  # fmt: skip
            b_lse = tl.load(p_lse + row_start + q_token, mask=q_valid, other=0.0)
            b_delta = tl.load(p_delta + row_start + q_token, mask=q_valid, other=0.0)
            b_p = tl.exp(b_s - b_lse[:, None])
            b_dv += tl.dot(tl.trans(b_p.to(b_do.dtype)), b_do, input_precision=PRECISION)
            b_ds = tl.dot(b_do, tl.trans(b_v), input_precision=PRECISION) - b_delta[:, None]
            b_ds = tl.trans((b_p * b_ds * scale).to(b_q.dtype))
            b_dk += tl.dot(b_ds, b_q, input_precision=PRECISION)
            if EXTRA:
                b_dextra += tl.dot(b_ds, b_q_extra, input_precision=PRECISION)
    stored = tl.where(tl.load(p_own_entries) >= 0, k_valid, False)
    out_start = (hash_round.to(tl.int64) * bh + batch * H + head) * N
    _store_rows(p_dk + out_start * WIDTH, k_token, WIDTH, BLOCK_D, stored, b_dk)
    _store_rows(p_dv + out_start * WIDTH, k_token, WIDTH, BLOCK_D, stored, b_dv)
    if EXTRA:
        _store_rows(p_dk_extra + out_start * EXTRA, k_token, EXTRA, BLOCK_A, stored, b_dextra)
