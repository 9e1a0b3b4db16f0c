"""Attention in blocks: the piecewise CPU kernel against the reference, outputs and gradients."""

import pytest
import torch

from clusterformer.kernels import _attend_cpu, reference
from clusterformer.kernels.chunk_attention import chunk_attention


def inputs(batch: int, groups: int, width: int, reach: int, causal: bool, extra: int = 4):
    places = groups + reach - 1
    query = torch.randn(batch, groups, width, 2, 12)
    key, value = torch.randn(2, batch, places, width, 2, 12).unbind(0)
    query_extra = torch.randn(batch, groups, width, extra)
    key_extra = torch.randn(batch, places, width, extra)
    mask = torch.rand(batch, groups, width if causal else 1, reach * width) < 0.7
    mask[..., 0] = True
    return [x.requires_grad_() for x in (query, key, value, query_extra, key_extra)], mask


@pytest.mark.parametrize("piece", [1, 500, 2000, 10**9])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 5, 3, 2), (3, 4, 7, 3), (5, 2, 16, 3)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("extra", [0, 4])
def test_pieces_are_the_reference(piece, shape, causal: bool, extra: int, monkeypatch) -> None:
    monkeypatch.setattr(_attend_cpu, "PIECE", piece)
    tensors, mask = inputs(*shape, causal, extra)
    ours = _attend_cpu.attend(*tensors, mask, 0.3)
    theirs = reference.attend(*tensors, mask, 0.3)
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    gradients = torch.autograd.grad((ours * weight).sum(), tensors, materialize_grads=True)
    expected = torch.autograd.grad((theirs * weight).sum(), tensors, materialize_grads=True)
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted)


def test_the_operator_is_sound_for_compilers() -> None:
    tensors, mask = inputs(2, 4, 3, 2, causal=False)
    torch.library.opcheck(torch.ops.clusterformer.attend, (*tensors, mask, 0.3))


def test_bfloat16_is_at_least_as_good_as_plain_torch() -> None:
    tensors, mask = inputs(2, 4, 16, 3, causal=False)
    exact = reference.attend(*tensors, mask, 0.3)
    low = [x.bfloat16() for x in tensors]
    ours = (_attend_cpu.attend(*low, mask, 0.3).float() - exact).abs().max()
    theirs = (reference.attend(*low, mask, 0.3).float() - exact).abs().max()
    assert ours <= 2 * theirs + 1e-5


def test_extra_columns_are_columns_of_every_head() -> None:
    grouped = reference.sort(torch.randint(0, 4, (3, 17)), 4)
    blocks = reference.equal_blocks(grouped, 5, None, look_back=1, look_ahead=1)
    q, k, v = torch.randn(3, 3, 2, 17, 12).unbind(0)
    a, b = torch.randn(2, 3, 17, 4).unbind(0)
    out = chunk_attention(q, k, v, blocks, scale=0.5, extra=(a, b))
    wide = [torch.cat([x, y[:, None].expand(-1, 2, -1, -1)], -1) for x, y in ((q, a), (k, b))]
    padded = torch.nn.functional.pad(v, (0, 4))
    expected = chunk_attention(*wide, padded, blocks, scale=0.5)[..., :12]
    torch.testing.assert_close(out, expected)
