"""No mechanism makes a GPU wait."""

import inspect

import pytest
import torch
from contract_layers import FORMS, HEADS, SMALL, WIDTH, mask_of, name
from waits import Waits

from clusterformer.attention import MultiHeadAttention
from clusterformer.kernels.dispatch import VARIABLE


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize(("cls", "causal"), FORMS, ids=name)
def test_no_layer_makes_a_gpu_wait(cls, causal, training: bool, monkeypatch) -> None:
    """But for texts of up to `dense_length` tokens, which have to be found."""
    monkeypatch.setenv(VARIABLE, "reference")
    options = {**SMALL, "dense_length": 0}
    options = {k: v for k, v in options.items() if k in inspect.signature(cls).parameters}
    layer = MultiHeadAttention(cls(WIDTH, HEADS, causal=causal, **options)).train(training)
    x, mask = torch.randn(3, 37, WIDTH, requires_grad=True), mask_of([37, 20, 1], 37)
    with Waits() as waits:
        out = layer(x, mask)
        out.values.sum().backward()
        layer.core.keys_seen(out.grouping, mask)
    assert not waits.found
