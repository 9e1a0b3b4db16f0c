"""What makes a GPU wait: numbers that Python reads from it, and tensors that come from the host."""

import inspect
from typing import Any

import pytest
import torch
from contract_layers import FORMS, HEADS, SMALL, WIDTH, mask_of, name
from torch.utils._python_dispatch import TorchDispatchMode

from clusterformer.attention import MultiHeadAttention
from clusterformer.kernels.dispatch import VARIABLE

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "lift_fresh", "unique_dim")


class Waits(TorchDispatchMode):
    """Note the operations at which a GPU would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None) -> Any:  # type: ignore[no-untyped-def]
        operation = function.overloadpacket.__name__
        by_mask = operation == "index" and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if operation in WAITING or by_mask:
            self.found.append(operation)
        return function(*args, **(kwargs or {}))


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
