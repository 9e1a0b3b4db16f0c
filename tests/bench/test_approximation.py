"""The figure of merit of mechanisms that approximate full attention, by hand."""

import pytest
import torch
import torch.nn.functional as F

from clusterformer.attention import OracleTopAttention
from clusterformer.bench.approximation import measure
from clusterformer.bench.recording import Inputs, relative_error


def test_the_error_is_a_share_of_what_full_attention_gives() -> None:
    values, exact = torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([[1.0, 4.0], [0.0, 0.0]])
    assert relative_error(values, exact) == pytest.approx((4 + 1) / (1 + 16))


def test_the_error_of_a_mechanism_is_the_mean_of_its_layers() -> None:
    layers = [Inputs(*torch.randn(3, 2, 4, 9, 8)) for _ in range(2)]
    full, row = measure(layers, [("OracleTopAttention", {"top_k": 3})], repeats=1)
    core, expected = OracleTopAttention(32, 4, top_k=3), []
    for q, k, v in layers:
        exact = F.scaled_dot_product_attention(q, k, v)
        values, _ = core(q, k, v, hidden=q)
        expected.append(float((values - exact).square().sum() / exact.square().sum()))
    assert full["of_layers"] == [0, 0]
    assert row["of_layers"] == pytest.approx(expected)
    assert row["relative_squared_error"] == pytest.approx(sum(expected) / 2)
    assert min(expected) > 0.1
