"""Counted operations are those of the formulas, also inside operations of our own."""

import pytest
import torch

from clusterformer.bench.flops import count_flops
from clusterformer.bench.subjects import Setting, Subject


def test_operations_of_full_attention_are_those_of_the_formula() -> None:
    batch, heads, length, width = 2, 3, 10, 4
    q = torch.randn(batch, heads, length, width, requires_grad=True)
    forward = 4 * batch * heads * length**2 * width
    attend = torch.nn.functional.scaled_dot_product_attention
    assert count_flops(lambda: attend(q, q, q)) == forward
    assert count_flops(lambda: attend(q, q, q).sum().backward()) == forward * 7 // 2


@pytest.mark.parametrize(("name", "keys"), [("paper", 256), ("blocks-64", 192)])
def test_operations_of_blocks_are_those_of_full_attention_within_them(name: str, keys: int) -> None:
    setting = Setting(512, 512, 16, 2, 4, False, True, 0, 16, "fp32", "cpu")
    full, ours = (count_flops(Subject(name, setting).step) for name in ("FullAttention", name))
    projections = 3 * 4 * 2 * 512 * 16 * 16
    assert full == projections + 14 * 512 * 512 * 16
    within = 14 * 512 * keys * 16  # two blocks of 128, three of 64
    assert projections + within < ours < projections + within * 2.5


def test_operations_of_causal_chunks_are_counted() -> None:
    setting = Setting(512, 512, 16, 2, None, True, True, 0, 16, "fp32", "cpu")
    projections = 3 * 4 * 2 * 512 * 16 * 16
    within = 14 * 512 * 16 * 16  # up to itself in its own chunk of 32, on average
    found = count_flops(Subject("chunks-32", setting).step)
    assert projections + within < found < projections + 14 * 512 * 512 * 16
