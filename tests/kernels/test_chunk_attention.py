"""Attention in blocks: the piecewise CPU kernel against the reference, outputs and gradients."""

import pytest
import torch

from clusterformer.kernels import (
    _chunk_attention_cpu,
    _cluster_chunks_cpu,
    _narrow_blocks_cpu,
    reference,
)
from clusterformer.kernels.blocks import Blocks, window_mask
from clusterformer.kernels.chunk_attention import chunk_attention
from clusterformer.kernels.chunking import cluster_chunks, equal_blocks, window_blocks
from clusterformer.kernels.dense_attention import dense_attention, dense_prefix


def some_blocks(kind: str, batch: int, length: int, mask: torch.Tensor | None) -> Blocks:
    grouped = reference.sort(torch.randint(0, 4, (batch, length)), 4, mask)
    if kind == "chunks":
        return cluster_chunks(grouped, 3, mask, look_back=2)
    if kind == "window":
        return window_blocks(length, batch, 4, mask, device=torch.device("cpu"))
    return equal_blocks(grouped, 5, mask, look_back=1, look_ahead=1)


def inputs(batch: int, length: int, width: int, extra: int = 4) -> list[torch.Tensor]:
    heads = torch.randn(3, batch, length, 2, width).transpose(2, 3).unbind(0)
    columns = torch.randn(2, batch, length, extra).unbind(0)
    return [x.detach().requires_grad_() for x in (*heads, *columns)]


ROWS = {"sequences": 1, "heads": 2, "rounds of heads": 6}  # of blocks, a sequence of two heads


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    ("piece", "batch", "length", "width"), [(1, 1, 1, 1), (1, 3, 17, 12), (2000, 2, 63, 9)]
)
@pytest.mark.parametrize("kind", ["blocks", "chunks", "window"])
@pytest.mark.parametrize(
    ("causal", "extra", "padded", "self_bias"),
    [(False, 0, False, -2.0), (False, 4, True, 0.0), (True, 0, True, -2.0)],
)
def test_pieces_are_the_reference(
    rows, piece, batch, length, width, kind, causal, extra, padded, self_bias, monkeypatch
) -> None:
    monkeypatch.setattr(_chunk_attention_cpu, "PIECE", piece)
    lengths = torch.tensor([length, length // 2, 0])[:batch]
    mask = torch.arange(length) < lengths[:, None] if padded else None
    each = None if mask is None else mask.repeat_interleave(min(ROWS[rows], 2), 0)
    each = each if each is None or ROWS[rows] < 3 else each.repeat(ROWS[rows] // 2, 1)
    blocks = some_blocks(kind, ROWS[rows] * batch, length, each)
    tensors = inputs(batch, length, width, extra)
    q, k, v, *columns = tensors
    seen = window_mask(blocks, causal, 3 if kind == "window" else None)
    options = {"scale": 0.3, "mask": seen, "self_bias": self_bias, "extra": tuple(columns)}
    ours = _chunk_attention_cpu.chunk_attention(q, k, v, blocks, **options)
    theirs = reference.chunk_attention(q, k, v, blocks, **options)
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    gradients = torch.autograd.grad((ours * weight).sum(), tensors, materialize_grads=True)
    expected = torch.autograd.grad((theirs * weight).sum(), tensors, materialize_grads=True)
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("length", [1, 17, 90])
@pytest.mark.parametrize(
    ("extra", "padded", "self_bias", "prefix"),
    [(0, True, -2.0, 0), (4, False, 0.0, 25), (4, True, 0.0, 0), (0, True, 0.0, 9)],
)
@pytest.mark.parametrize("light", [_cluster_chunks_cpu.LIGHT, 2000])
def test_chunks_of_sorted_tokens_are_the_reference(
    light, rows, length, extra, padded, self_bias, prefix, monkeypatch
) -> None:
    """Also where the first tokens attend to all before them; they are still keys of others."""
    monkeypatch.setattr(_cluster_chunks_cpu, "LIGHT", light)
    mask = torch.arange(length) < torch.tensor([length, length // 2, 0])[:, None]
    if not prefix:
        mask = torch.rand(3, length) < 0.8
    each = mask.repeat_interleave(rows, 0) if padded else None
    blocks = some_blocks("chunks", rows * 3, length, each)
    tensors = inputs(3, length, 12, extra)
    q, k, v, *columns = tensors
    options = {"scale": 0.3, "self_bias": self_bias, "extra": tuple(columns)}
    ours = _cluster_chunks_cpu.chunk_attention(q, k, v, blocks, **options, prefix=prefix)
    seen = window_mask(blocks, causal=True)
    theirs = reference.chunk_attention(q, k, v, blocks, **options, mask=seen)
    theirs = dense_prefix(theirs, q, k, v, prefix, 0.3)
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    gradients = torch.autograd.grad((ours * weight).sum(), tensors, materialize_grads=True)
    expected = torch.autograd.grad((theirs * weight).sum(), tensors, materialize_grads=True)
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("scores", [1, 2000])
@pytest.mark.parametrize(("length", "padded", "causal"), [(1, False, True), (17, True, False)])
@pytest.mark.parametrize("kind", ["blocks", "chunks", "window"])
def test_products_over_views_are_the_reference(
    scores, length, padded, kind, causal, monkeypatch
) -> None:
    monkeypatch.setattr(_narrow_blocks_cpu, "SCORES", scores)
    lengths = torch.tensor([length, length // 2, 0])
    mask = torch.arange(length) < lengths[:, None] if padded else None
    blocks = some_blocks(kind, 3, length, mask)
    tensors = inputs(3, length, 12)
    q, k, v, *columns = tensors
    seen = window_mask(blocks, causal, 3 if kind == "window" else None)
    options = {"scale": 0.3, "mask": seen, "extra": tuple(columns)}
    ours = _narrow_blocks_cpu.chunk_attention(q, k, v, blocks, **options)
    theirs = reference.chunk_attention(q, k, v, blocks, self_bias=0.0, **options)
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    loss = (ours * weight).sum()
    gradients = torch.autograd.grad(loss, tensors, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        within = torch.autograd.grad(loss, tensors)
    assert all(torch.equal(a, b) for a, b in zip(within, gradients, strict=True))
    expected = torch.autograd.grad((theirs * weight).sum(), tensors)
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("clusters", "ahead"), [(1, 0), (2, 0), (3, 1)])
@pytest.mark.parametrize(
    ("heads", "causal", "self_bias"),
    [(1, False, 0.0), (2, False, -5e4), (2, True, -5e4), (1, True, 0)],
)
def test_what_sees_all_is_the_reference(heads, causal, self_bias, clusters, ahead, padded) -> None:
    batch, length = 3, 17
    mask = torch.arange(length) < torch.tensor([length, 5, 0])[:, None] if padded else None
    rows = None if mask is None else mask.repeat_interleave(heads, 0)
    grouped = reference.sort(torch.randint(0, clusters, (batch * heads, length)), clusters, rows)
    blocks = equal_blocks(grouped, clusters, rows, look_ahead=ahead)
    assert blocks.whole
    tensors = inputs(batch, length, 12)
    q, k, v, *columns = tensors
    options = {"scale": 0.3, "self_bias": self_bias, "extra": tuple(columns)}
    ours = chunk_attention(q, k, v, blocks, causal=causal, **options)
    options["mask"] = window_mask(blocks, causal)
    theirs = reference.chunk_attention(q, k, v, blocks, **options)
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    gradients = torch.autograd.grad((ours * weight).sum(), tensors)
    expected = torch.autograd.grad((theirs * weight).sum(), tensors)
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("rows", ["sequences", "heads"])
@pytest.mark.parametrize("kind", ["blocks", "chunks", "window"])
@pytest.mark.parametrize(("causal", "self_bias"), [(False, -2.0), (True, 0.0)])
def test_one_dense_product_is_the_reference(kind, rows, causal, self_bias, padded) -> None:
    """For blocks of any length; `chunk_attention` chooses it where they are short."""
    batch, length = 3, 17
    mask = torch.arange(length) < torch.tensor([length, 5, 0])[:, None] if padded else None
    each = None if mask is None else mask.repeat_interleave(ROWS[rows], 0)
    blocks = some_blocks(kind, ROWS[rows] * batch, length, each)
    assert not blocks.short
    tensors = inputs(batch, length, 12)
    q, k, v, *columns = tensors
    options = {"scale": 0.3, "self_bias": self_bias, "extra": tuple(columns)}
    ours = dense_attention(q, k, v, blocks, causal=causal, **options)
    options["mask"] = window_mask(blocks, causal)
    theirs = reference.chunk_attention(q, k, v, blocks, **options)
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    gradients = torch.autograd.grad((ours * weight).sum(), tensors)
    expected = torch.autograd.grad((theirs * weight).sum(), tensors)
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted)


def test_a_text_no_longer_than_a_window_is_short() -> None:
    for length, short in ((1, True), (12, True), (13, False)):
        grouped = reference.sort(torch.randint(0, 4, (2, length)), 4)
        assert cluster_chunks(grouped, 4, look_back=2).short == short
        blocks = window_blocks(length, 2, 4, look_back=2, device=torch.device("cpu"))
        assert blocks.short == short


@pytest.mark.slow
def test_the_operator_is_sound_for_compilers() -> None:
    q, k, v, *columns = inputs(2, 17, 12)
    blocks = some_blocks("blocks", 2, 17, None)
    rows = (x.detach().transpose(1, 2).flatten(0, 1).requires_grad_() for x in (q, k, v))
    columns = (x.detach().flatten(0, 1).requires_grad_() for x in columns)
    slot_rows = (blocks.members + torch.tensor([0, 17])[:, None, None])[None]
    index = slot_rows, blocks.own_filled[None], window_mask(blocks)[None]
    arguments = (*rows, *columns, *index, blocks.look_back, 0.3, 0.0)
    torch.library.opcheck(torch.ops.clusterformer.chunk_attention, arguments)


def test_bfloat16_is_at_least_as_good_as_plain_torch() -> None:
    q, k, v, *columns = inputs(2, 63, 12)
    blocks = some_blocks("blocks", 2, 63, None)
    options = {"scale": 0.3, "mask": window_mask(blocks), "self_bias": 0.0}
    exact = reference.chunk_attention(q, k, v, blocks, extra=tuple(columns), **options)
    low = [x.bfloat16() for x in (q, k, v, *columns)]
    kernels = (_chunk_attention_cpu.chunk_attention, reference.chunk_attention)
    ours, theirs = (
        (kernel(*low[:3], blocks, extra=tuple(low[3:]), **options).float() - exact).abs().max()
        for kernel in kernels
    )
    assert ours <= 2 * theirs + 1e-5


def test_extra_columns_are_columns_of_every_head() -> None:
    q, k, v, a, b = inputs(3, 17, 12)
    blocks = some_blocks("blocks", 3, 17, None)
    out = chunk_attention(q, k, v, blocks, scale=0.5, extra=(a, b))
    wide = [torch.cat([x, y[:, None].expand(-1, 2, -1, -1)], -1) for x, y in ((q, a), (k, b))]
    padded = torch.nn.functional.pad(v, (0, 4))
    expected = chunk_attention(*wide, padded, blocks, scale=0.5)[..., :12]
    torch.testing.assert_close(out, expected)
