"""Values and masses of small products: the version for CPU against its definition."""

import pytest
import torch
from torch import Tensor

from clusterformer.kernels import attention_and_masses as kernel
from clusterformer.kernels.merging import NO_MASS

ROWS, QUERIES, KEYS = 7, 3, 5


def draw(width_of_values: int) -> list[Tensor]:
    bias = torch.randn(ROWS, 1, KEYS)
    bias[1, :, 2:] = NO_MASS  # empty slots
    q, k = torch.randn(ROWS, QUERIES, 8), torch.randn(ROWS, KEYS, 8)
    return [q, k, torch.randn(ROWS, KEYS, width_of_values), bias]


@pytest.mark.parametrize("width_of_values", [0, 4, 16])
@pytest.mark.parametrize("part", [1, QUERIES * KEYS * 3, 10**6], ids="part {}".format)
def test_equals_the_definition_with_all_gradients(part: int, width_of_values: int, monkeypatch):
    """In parts of any size: one row, some that leave a rest, and all at once."""
    monkeypatch.setattr(kernel, "SLICE", part)
    inputs = draw(width_of_values)
    grads = torch.randn(ROWS, QUERIES, width_of_values), torch.randn(ROWS, QUERIES, 1)
    results = []
    for function in (kernel.reference, kernel.attention_and_masses):
        leaves = [x.clone().requires_grad_() for x in inputs]
        outputs = function(*leaves)
        torch.autograd.backward(outputs, grads)
        results.append([*outputs, *(x.grad for x in leaves)])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_a_row_without_keys_has_no_mass_and_finite_numbers() -> None:
    q, k, v, _ = draw(4)
    bias = torch.full((ROWS, 1, KEYS), NO_MASS)
    leaves = [x.requires_grad_() for x in (q, k, v, bias)]
    values, masses = kernel.attention_and_masses(*leaves)
    assert (masses == NO_MASS).all()
    values.sum().backward()
    assert all(x.isfinite().all() for x in (values, *(x.grad for x in leaves)))


def test_masses_alone_have_gradients() -> None:
    q, k, v, bias = (x.requires_grad_() for x in draw(4))
    _, masses = kernel.attention_and_masses(q, k, v, bias)
    masses[0].sum().backward()
    weights = (q[0] @ k[0].T + bias[0]).softmax(-1)
    torch.testing.assert_close(q.grad[0], weights @ k[0])
    assert not v.grad.any()
