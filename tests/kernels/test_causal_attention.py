"""Causal attention in strips: against a softmax under a mask, with gradients, at any length."""

import pytest
import torch
from torch import Tensor

from clusterformer.kernels.causal_attention import LONGEST, STRIP, causal_attention

SCALE = 0.3


def by_definition(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    before = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
    scores = SCALE * (q.float() @ k.float().transpose(2, 3))
    return (scores.masked_fill(~before, float("-inf")).softmax(-1) @ v.float()).to(q.dtype)


def draw(length: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Draw q, k, v as a layer hands them on: heads cut from rows, so not contiguous."""
    rows = (torch.randn(2, length, 3, 8, dtype=dtype) for _ in range(3))
    return [x.transpose(1, 2).requires_grad_() for x in rows]


@pytest.mark.parametrize(
    "length", [1, STRIP, STRIP + 1, 2 * STRIP, 5 * STRIP - 3, LONGEST, LONGEST + 1]
)
def test_equals_the_definition_with_all_gradients(length: int) -> None:
    inputs, grad = draw(length), torch.randn(2, 3, length, 8)
    out, expected = causal_attention(*inputs, SCALE), by_definition(*inputs)
    torch.testing.assert_close(out, expected)
    found = torch.autograd.grad(out, inputs, grad)
    torch.testing.assert_close(found, torch.autograd.grad(expected, inputs, grad))


@pytest.mark.parametrize("length", [STRIP, STRIP + 1, LONGEST + 1])
def test_numbers_of_a_row_need_not_be_neighbours(length: int) -> None:
    *inputs, grad = (torch.randn(2, 3, 8, length).transpose(2, 3) for _ in range(4))
    inputs = [x.requires_grad_() for x in inputs]
    out, expected = causal_attention(*inputs, SCALE), by_definition(*inputs)
    torch.testing.assert_close(out, expected)
    found = torch.autograd.grad(out, inputs, grad)
    torch.testing.assert_close(found, torch.autograd.grad(expected, inputs, grad))


@pytest.mark.parametrize("length", [STRIP, 3 * STRIP + 5])
def test_half_precision_loses_only_its_rounding(length: int) -> None:
    inputs = draw(length, torch.bfloat16)
    out = causal_attention(*inputs, SCALE)
    assert out.dtype is torch.bfloat16
    expected = by_definition(*(x.detach().float() for x in inputs))
    torch.testing.assert_close(out.float(), expected, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("changed", [0, STRIP - 1, STRIP, 2 * STRIP + 1])
def test_no_later_token_changes_a_bit(changed: int) -> None:
    inputs = [x.detach() for x in draw(3 * STRIP)]
    before = causal_attention(*inputs, SCALE)
    for x in inputs:
        x[:, :, changed:] += 1
    after = causal_attention(*inputs, SCALE)
    assert torch.equal(before[:, :, :changed], after[:, :, :changed])
    assert not torch.equal(before[:, :, changed], after[:, :, changed])


def test_compiles_with_gradients() -> None:
    inputs = draw(2 * STRIP + 1)
    compiled = torch.compile(causal_attention, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(*inputs, SCALE).sum(), inputs)
    expected = torch.autograd.grad(causal_attention(*inputs, SCALE).sum(), inputs)
    torch.testing.assert_close(found, expected)
