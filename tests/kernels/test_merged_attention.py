"""Near and far keys merged: the fused version against its definition."""

import pytest
import torch
from torch import Tensor

from clusterformer.kernels import merged_attention as kernel
from clusterformer.kernels.merging import NO_MASS


@pytest.mark.parametrize("mass", [0.0, 4.0, -20.0, NO_MASS])
@pytest.mark.parametrize("neighbours", [True, False], ids=["rows", "columns"])
def test_equals_the_definition_with_all_gradients(mass: float, neighbours: bool) -> None:
    """Also where the numbers of a row are no neighbours in memory."""

    def draw() -> Tensor:
        return torch.randn(3, 13, 8) if neighbours else torch.randn(3, 8, 13).transpose(1, 2)

    *rows, grad = (draw() for _ in range(5))
    rows.append(torch.randn(3, 13, 1) + mass)
    results = []
    for function in (kernel.reference, kernel.merged_attention):
        leaves = [x.clone().requires_grad_() for x in rows]
        out = function(*leaves)
        out.backward(grad)
        results.append([out, *(x.grad for x in leaves)])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_two_parts_are_attention_to_all() -> None:
    q, k, v, before, of_before = (torch.randn(2, 7, 8) for _ in range(5))
    scores = q @ before.transpose(1, 2)
    far, mass = scores.softmax(-1) @ of_before, scores.logsumexp(-1, keepdim=True)
    merged = kernel.merged_attention(q, k, v, far, mass)
    mask = torch.cat([torch.ones(7, 7, dtype=torch.bool), torch.ones(7, 7).tril().bool()], 1)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, torch.cat([before, k], 1), torch.cat([of_before, v], 1), attn_mask=mask, scale=1.0
    )
    torch.testing.assert_close(merged, expected)
