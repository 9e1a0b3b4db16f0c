"""Strictly causal attention in chunks of clusters, on CPU, without empty slots.

Letters as in reference.py. "rows" are B * N tokens, or B * H * N where every head has its own
clusters; n rows that are queries.

Rows are sorted by cluster once. A chunk and the chunks that it sees are then neighbours in memory,
and views; a token may attend to the keys of its window up to its own, whatever the text. So no
index, no mask and no slot is made for each chunk.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.kernels.autograd import register_backward
from clusterformer.kernels.blocks import Blocks, Sorted
from clusterformer.kernels.causal_attention import gradients, values_and_masses
from clusterformer.kernels.rows import repeat_rows

SCORES = 2**19
"""Maximum number of logits of all heads in one piece, 2 MiB."""

LIGHT = 2**21
"""Maximum product of queries, keys and model width of small clusters that are one piece."""


class _Span(NamedTuple):
    """Tokens of one cluster, in sorted rows: keys `first_key` to `end`, queries from `first` on."""

    first_key: int
    first: int
    end: int


class _Piece(NamedTuple):
    """Queries, by number, keys, in sorted rows, and the bias on their logits, (queries, keys)."""

    queries: slice
    keys: slice
    bias: Tensor


def is_narrow(blocks: Blocks, batch: int, heads: int) -> bool:
    """Tell whether blocks are chunks of clusters, and the logits of a window stay in the cache.

    With blocks of their own, heads are sequences; several hash rounds of them are not for here.
    """
    if blocks.grouped is None or len(blocks.slot) > batch * heads:
        return False
    window = blocks.members.shape[-1] * blocks.visible.shape[-1]
    return (heads if len(blocks.slot) == batch else 1) * window * window <= SCORES


def chunk_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Blocks,
    *,
    scale: float,
    self_bias: float,
    extra: tuple[Tensor, Tensor],
    prefix: int,
) -> Tensor:
    """Apply softmax attention of each token over its chunk and those before it, up to itself.

    Computes in float32 in every dtype. Saves q, k, v and the values, as full attention does.

    Args:
        q, k, v: (B, H, N, D). The logits are scale * q . k.
        blocks: Chunks of the clusters of each sequence (B, ...), or of each head (B * H, ...).
        scale: Factor on the logits.
        self_bias: Bias on the logit of a token with itself.
        extra: Additional columns of q and of k, (B, N, A) each; A may be 0.
        prefix: Number of first tokens of a sequence that attend to all before them instead,
            without additional columns; padding must be last.

    Returns:
        (B, H, N, D) in the dtype of q; 0 at padding behind the first tokens.
    """
    (batch, heads), grouped = q.shape[:2], blocks.grouped
    assert grouped is not None
    together = len(grouped.order) == batch  # all heads of a sequence have the same clusters
    q, k, v = (x.transpose(1, 2) if together else x.flatten(0, 1)[:, :, None] for x in (q, k, v))
    columns = (x.float() if together else repeat_rows(x.float(), heads) for x in extra)
    prefix = min(prefix, q.shape[1])
    out, _ = _forward(
        *(x.contiguous() for x in (q, k, v)), *columns, grouped.order, grouped.inverse,
        grouped.counts, _skipped(grouped, prefix), blocks.members.shape[-1],
        blocks.look_back, prefix, scale, self_bias,
    )  # fmt: skip
    return out.transpose(1, 2) if together else out.view(batch, heads, *out.shape[1::2])


def _skipped(grouped: Sorted, prefix: int) -> Tensor:
    """Count the tokens of each cluster, (B, C), among the first ones."""
    if not prefix:
        return torch.zeros_like(grouped.counts)
    among = (grouped.order < prefix).cumsum(1)
    ends = F.pad(grouped.counts.cumsum(1), (1, 0))
    return F.pad(among, (1, 0)).gather(1, ends).diff(dim=1)


@torch.library.custom_op("clusterformer::cluster_chunks", mutates_args=())
@torch.autocast("cpu", enabled=False)
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_extra: Tensor,
    k_extra: Tensor,
    order: Tensor,
    inverse: Tensor,
    counts: Tensor,
    skipped: Tensor,
    chunk_size: int,
    look_back: int,
    prefix: int,
    scale: float,
    self_bias: float,
) -> tuple[Tensor, Tensor]:
    """Compute values (B, N, H, D) and log-sum-exps of the first tokens, (B, H, prefix).

    Args:
        q, k, v: (B, N, H, D).
        q_extra, k_extra: (B, N, A).
        order: (B, N) sorted tokens, padding last.
        inverse: (B, N) sorted position of each token.
        counts: (B, C) tokens of each cluster.
        skipped: (B, C) first tokens of each cluster that need no values from it.
        chunk_size: S.
        look_back: Number of chunks seen before the own one.
        prefix: Number of first tokens that attend to all before them.
        scale: Factor on the logits.
        self_bias: Bias on the logit of a token with itself.
    """
    out, sums = torch.zeros_like(q), q.new_empty(0, dtype=torch.float32)
    if prefix:
        query, key, value = (_prefix(x, prefix) for x in (q, k, v))
        first, sums = values_and_masses(query, key, value, scale)
        out[:, :prefix] = first.transpose(1, 2)
    own, seen = _rows(order, counts, prefix)
    query, key, value, *columns = _take((q, k, v, q_extra, k_extra), own, seen, scale)
    values, bias = torch.empty_like(query), _causal_bias(counts, chunk_size, look_back, self_bias)
    for piece in _pieces(counts, skipped, order.shape[1], bias, chunk_size, look_back, query):
        weights = _weights(query, key, columns, piece)
        _heads(values, piece.queries).copy_(torch.bmm(weights, _heads(value, piece.keys)))
    out.flatten(0, 1).flatten(1).index_copy_(0, own, values.flatten(1).to(out.dtype))
    return out, sums


@torch.library.custom_op("clusterformer::cluster_chunks_backward", mutates_args=())
@torch.autocast("cpu", enabled=False)
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_extra: Tensor,
    k_extra: Tensor,
    order: Tensor,
    inverse: Tensor,
    counts: Tensor,
    skipped: Tensor,
    out: Tensor,
    sums: Tensor,
    chunk_size: int,
    look_back: int,
    prefix: int,
    scale: float,
    self_bias: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute gradients of q, k, v and the additional columns.

    dS = P * (dO V^T - delta), delta = dO . O; P is computed again.
    """
    inputs = q, k, v, q_extra, k_extra
    own, seen = _rows(order, counts, prefix)
    query, key, value, *columns = _take(inputs, own, seen, scale)
    given, values = (x.flatten(0, 1).index_select(0, own).float() for x in (grad, out))
    delta = -(given * values).sum(-1, keepdim=True)  # (n, H, 1)
    dq, dq_extra = torch.empty_like(query), torch.empty_like(columns[0])
    dk, dv, dk_extra = (torch.zeros_like(x) for x in (key, value, columns[1]))
    bias = _causal_bias(counts, chunk_size, look_back, self_bias)
    for piece in _pieces(counts, skipped, order.shape[1], bias, chunk_size, look_back, query):
        queries, keys = piece.queries, piece.keys
        p, d_out = _weights(query, key, columns, piece), _heads(given, queries)
        _heads(dv, keys).add_(torch.bmm(p.transpose(1, 2), d_out))
        transposed = _heads(value, keys).transpose(1, 2)
        ds = torch.baddbmm(_heads(delta, queries), d_out, transposed).mul_(p)
        _heads(dq, queries).copy_(torch.bmm(ds, _heads(key, keys)))
        _heads(dk, keys).add_(torch.bmm(ds.transpose(1, 2), _heads(query, queries)))
        if columns[0].shape[1]:
            total = ds.sum(0)  # all heads add the same bias
            torch.mm(total, columns[1][keys], out=dq_extra[queries])
            dk_extra[keys].addmm_(total.t(), columns[0][queries])
    back = (inverse + _starts(order)).flatten()
    dq, dq_extra = (
        torch.zeros(like.shape, dtype=torch.float32)
        .flatten(0, 1)
        .index_copy_(0, own, part.mul_(scale))
        .view(like.shape)
        for like, part in ((q, dq), (q_extra, dq_extra))
    )
    dk, dv, dk_extra = (
        part.index_select(0, back).view(like.shape)
        for like, part in ((k, dk), (v, dv), (k_extra, dk_extra))
    )
    if prefix:
        d_out, query, key, value, mixed = (_prefix(x, prefix) for x in (grad, q, k, v, out))
        parts = gradients(d_out, query, key, value, mixed, sums, scale)
        for whole, part in zip((dq, dk, dv), parts, strict=True):
            whole[:, :prefix] += part.transpose(1, 2)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dq_extra, dk_extra


@_forward.register_fake
def _(q: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    prefix = others[-3]
    shape = (q.shape[0], q.shape[2], prefix) if prefix else (0,)
    return torch.empty_like(q), q.new_empty(shape, dtype=torch.float32)


register_backward(_forward, _backward, gradients=5)


def _pieces(
    counts: Tensor,
    skipped: Tensor,
    length: int,
    bias: Tensor,
    chunk_size: int,
    look_back: int,
    query: Tensor,
) -> Iterator[_Piece]:
    """Cut all clusters into pieces: one span each, or those of small neighbouring clusters."""
    light, at = LIGHT // (query.shape[1] * query.shape[2]), 0
    for row, (sizes, without) in enumerate(zip(counts.tolist(), skipped.tolist(), strict=True)):
        starts = accumulate(sizes, initial=row * length)
        clusters = (
            list(_spans(start, size, skip, chunk_size, look_back))
            for start, size, skip in zip(starts, sizes, without, strict=False)
        )
        for spans in _joined(clusters, light):
            yield (piece := _piece(spans, bias, at))
            at = piece.queries.stop


def _spans(start: int, size: int, skip: int, chunk_size: int, look_back: int) -> Iterator[_Span]:
    """Cut a cluster of `size` tokens into spans, without its first `skip` queries.

    The first chunks, of which each sees all before it, are one span; each later chunk is one.
    """
    while skip < size:
        first_key = max(skip // chunk_size - look_back, 0) * chunk_size
        end = min(first_key + (look_back + 1) * chunk_size, size)
        yield _Span(start + first_key, start + skip, start + end)
        skip = end


def _joined(clusters: Iterable[list[_Span]], light: int) -> Iterator[list[_Span]]:
    """Join clusters of one span while their queries times keys stay `light`; the rest are alone."""
    small: list[_Span] = []
    for spans in clusters:
        if small and (len(spans) > 1 or _area(small + spans) > light):
            yield small
            small = []
        if len(spans) > 1:
            yield from ([span] for span in spans)
        else:
            small = small + spans
    if small:
        yield small


def _area(spans: list[_Span]) -> int:
    """Count the logits of spans in a row as one piece."""
    return sum(span.end - span.first for span in spans) * (spans[-1].end - spans[0].first_key)


def _piece(spans: list[_Span], bias: Tensor, at: int) -> _Piece:
    """Make one piece of spans in a row, whose first query is number `at`."""
    first_key, end = spans[0].first_key, spans[-1].end
    parts = [
        bias[span.first - span.first_key : span.end - span.first_key, : span.end - span.first_key]
        for span in spans
    ]
    queries = sum(map(len, parts))
    if len(parts) == 1:
        mask = parts[0]
    else:
        mask, query = bias.new_full((queries, end - first_key), float("-inf")), 0
        for span, part in zip(spans, parts, strict=True):
            keys = slice(span.first_key - first_key, span.end - first_key)
            mask[query : query + len(part), keys] = part
            query += len(part)
    return _Piece(slice(at, at + queries), slice(first_key, end), mask)


def _causal_bias(counts: Tensor, chunk_size: int, look_back: int, self_bias: float) -> Tensor:
    """Bias on the logits of a window: 0 up to the query, -inf behind it."""
    side = min((look_back + 1) * chunk_size, int(counts.max()))
    bias = torch.full((side, side), float("-inf"), dtype=torch.float32).triu_(1)
    bias.diagonal().fill_(self_bias)
    return bias


def _prefix(rows: Tensor, prefix: int) -> Tensor:
    """View the first rows (B, N, H, D) as (B, H, prefix, D), in float32."""
    return rows[:, :prefix].transpose(1, 2).float()


def _starts(order: Tensor) -> Tensor:
    """Return the first row of each sequence, (B, 1)."""
    return torch.arange(len(order))[:, None] * order.shape[1]


def _rows(order: Tensor, counts: Tensor, prefix: int) -> tuple[Tensor, Tensor]:
    """Find the rows of queries (n,), real and not among the first, and of keys, in sorted order."""
    real = torch.arange(order.shape[1]) < counts.sum(1, keepdim=True)
    rows = order + _starts(order)
    return rows[real & (order >= prefix)], rows.flatten()


def _take(inputs: tuple[Tensor, ...], own: Tensor, seen: Tensor, scale: float) -> list[Tensor]:
    """Take queries, keys, values and columns (B, N, ...) in fp32; those of queries are scaled."""
    query, key, value, q_extra, k_extra = (
        x.flatten(0, 1).index_select(0, index).float()
        for x, index in zip(inputs, (own, seen, seen, own, seen), strict=True)
    )
    return [query.mul_(scale), key, value, q_extra.mul_(scale), k_extra]


def _heads(rows: Tensor, part: slice) -> Tensor:
    """View rows (n, H, F) as (H, rows of the part, F)."""
    return rows[part].transpose(0, 1)


def _weights(query: Tensor, key: Tensor, columns: list[Tensor], piece: _Piece) -> Tensor:
    """Compute the weights of the keys, (H, queries, keys)."""
    bias = piece.bias
    if columns[0].shape[1]:
        bias = torch.addmm(bias, columns[0][piece.queries], columns[1][piece.keys].t())
    keys = _heads(key, piece.keys).transpose(1, 2)
    return torch.baddbmm(bias, _heads(query, piece.queries), keys).softmax(-1)
