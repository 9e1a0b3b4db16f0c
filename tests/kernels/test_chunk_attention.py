"""Attention in blocks: the piecewise CPU kernel against the reference, outputs and gradients."""

import pytest
import torch

from clusterformer.kernels import _attend_cpu, reference
from clusterformer.kernels.chunk_attention import chunk_attention


def inputs(batch: int, groups: int, width: int, reach: int, causal: bool):
    query = torch.randn(batch, groups, width, 2, 12)
    key, value = torch.randn(2, batch, groups + reach - 1, width, 2, 12).unbind(0)
    mask = torch.rand(batch, groups, width if causal else 1, reach * width) < 0.7
    mask[..., 0] = True
    return [x.requires_grad_() for x in (query, key, value)], mask


@pytest.mark.parametrize("piece", [1, 500, 2000, 10**9])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 5, 3, 2), (3, 4, 7, 3), (5, 2, 16, 3)])
@pytest.mark.parametrize("causal", [False, True])
def test_pieces_are_the_reference(piece: int, shape, causal: bool, monkeypatch) -> None:
    monkeypatch.setattr(_attend_cpu, "PIECE", piece)
    tensors, mask = inputs(*shape, causal)
    ours = _attend_cpu.attend(*tensors, mask, 0.3)
    theirs = reference.attend(*tensors, mask, 0.3)
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    gradients = torch.autograd.grad((ours * weight).sum(), tensors)
    expected = torch.autograd.grad((theirs * weight).sum(), tensors)
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


def test_values_may_be_narrower_than_keys() -> None:
    grouped = reference.sort(torch.randint(0, 4, (3, 17)), 4)
    blocks = reference.equal_blocks(grouped, 5, None, look_back=1, look_ahead=1)
    q, k = torch.randn(2, 3, 2, 17, 12).unbind(0)
    v = torch.randn(3, 2, 17, 8)
    out = chunk_attention(q, k, v, blocks, scale=0.5)
    padded = torch.nn.functional.pad(v, (0, 4))
    torch.testing.assert_close(out, chunk_attention(q, k, padded, blocks, scale=0.5)[..., :8])
