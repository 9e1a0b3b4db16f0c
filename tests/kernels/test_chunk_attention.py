"""Attention in blocks: the piecewise CPU kernel against the reference, outputs and gradients."""

import pytest
import torch

from clusterformer.kernels import _chunk_attention_cpu, reference
from clusterformer.kernels.chunk_attention import chunk_attention


def some_blocks(kind: str, batch: int, length: int, mask: torch.Tensor | None) -> reference.Blocks:
    grouped = reference.sort(torch.randint(0, 4, (batch, length)), 4, mask)
    if kind == "chunks":
        return reference.cluster_chunks(grouped, 3, mask, look_back=2)
    if kind == "window":
        return reference.window_blocks(length, batch, 4, mask, device=torch.device("cpu"))
    return reference.equal_blocks(grouped, 5, mask, look_back=1, look_ahead=1)


def inputs(batch: int, length: int, width: int, extra: int = 4) -> list[torch.Tensor]:
    heads = torch.randn(3, batch, length, 2, width).transpose(2, 3).unbind(0)
    columns = torch.randn(2, batch, length, extra).unbind(0)
    return [x.detach().requires_grad_() for x in (*heads, *columns)]


@pytest.mark.parametrize("piece", [1, 500, 10**9])
@pytest.mark.parametrize(("batch", "length", "width"), [(1, 1, 1), (3, 17, 12), (2, 63, 9)])
@pytest.mark.parametrize("kind", ["blocks", "chunks", "window"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("extra", "padded"), [(0, False), (4, True)])
def test_pieces_are_the_reference(
    piece, batch, length, width, kind, causal, extra, padded, monkeypatch
) -> None:
    monkeypatch.setattr(_chunk_attention_cpu, "PIECE", piece)
    lengths = torch.tensor([length, length // 2, 0])[:batch]
    mask = torch.arange(length) < lengths[:, None] if padded else None
    blocks = some_blocks(kind, batch, length, mask)
    tensors = inputs(batch, length, width, extra)
    q, k, v, *columns = tensors
    within = 3 if kind == "window" else None
    options = {"scale": 0.3, "causal": causal, "within": within, "extra": tuple(columns)}
    ours = _chunk_attention_cpu.chunk_attention(q, k, v, blocks, **options)
    theirs = reference.chunk_attention(q, k, v, blocks, **options)
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    gradients = torch.autograd.grad((ours * weight).sum(), tensors, materialize_grads=True)
    expected = torch.autograd.grad((theirs * weight).sum(), tensors, materialize_grads=True)
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted)


def test_the_operator_is_sound_for_compilers() -> None:
    q, k, v, *columns = inputs(2, 17, 12)
    blocks = some_blocks("blocks", 2, 17, None)
    rows = (x.detach().transpose(1, 2).contiguous().requires_grad_() for x in (q, k, v))
    index = blocks.members, blocks.own_filled, reference.window_mask(blocks)
    arguments = (*rows, *columns, *index, blocks.back, 0.3)
    torch.library.opcheck(torch.ops.clusterformer.chunk_attention, arguments)


def test_bfloat16_is_at_least_as_good_as_plain_torch() -> None:
    q, k, v, *columns = inputs(2, 63, 12)
    blocks = some_blocks("blocks", 2, 63, None)
    options = {"scale": 0.3, "causal": False, "within": None}
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
