"""The contract through the Triton kernels, for the mechanisms that work in sorted chunks.

Interpreted on CPU without a GPU; there, half precision is float16: the interpreter's bfloat16 is
wrong.
"""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from clusterformer.attention import (
    AttentionCore,
    LocalAttention,
    MultiHeadAttention,
    NeuralClusteringAttention,
    ReformerAttention,
    RoutingAttention,
)
from clusterformer.kernels.dispatch import VARIABLE

pytest.importorskip("triton")

CHUNKED = (NeuralClusteringAttention, ReformerAttention, RoutingAttention, LocalAttention)
FORMS = [(cls, causal) for cls in CHUNKED for causal in cls.causal_forms]
QUICK = [(NeuralClusteringAttention, False)]
FORMS_OR_SLOW = [
    pytest.param(*form, marks=[] if form in QUICK else pytest.mark.slow) for form in FORMS
]
"""Interpreted kernels are slow; by default one form each of those that differ in their blocks."""
SMALL = {"num_clusters": 2, "chunk_size": 3, "window": 3, "local_window": 3}


def name(value: object) -> str:
    return value.__name__ if isinstance(value, type) else f"causal={value}"


def build(cls: type[AttentionCore], causal: object) -> MultiHeadAttention:
    options = {k: v for k, v in SMALL.items() if k in inspect.signature(cls).parameters}
    heads = 2 if cls is RoutingAttention else 1  # one local, one routed
    return MultiHeadAttention(cls(8, heads, causal=causal, **options)).eval()


def step(layer: MultiHeadAttention, x: Tensor, mask: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Values at real tokens, and every gradient."""
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        values = layer(x, mask).values
    loss = values[mask].float().square().sum()
    parameters = [p for p in layer.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [values[mask].detach(), *(g for g in found if g is not None)]


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float16, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize(("cls", "causal"), FORMS_OR_SLOW, ids=name)
def test_values_and_gradients_are_those_of_plain_pytorch(cls, causal, dtype, monkeypatch) -> None:
    layer = build(cls, causal)
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    x = torch.randn(2, 7, 8).masked_fill(~mask[..., None], float("nan"))
    monkeypatch.setenv(VARIABLE, "reference")
    expected = step(layer, x, mask, dtype)
    monkeypatch.setenv(VARIABLE, "triton")
    found = step(layer, x, mask, dtype)
    tolerance = (
        {"rtol": 1e-3, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    )
    for a, b in zip(found, expected, strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a.float(), b.float(), **tolerance)


class Called(TorchDispatchMode):
    """Names of the operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.name())
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(("cls", "causal"), FORMS, ids=name)
def test_nothing_attends_past_the_kernels(cls, causal, monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, "triton")
    layer = build(cls, causal)
    with torch.no_grad(), Called() as called:
        layer(torch.randn(1, 7, 8))
    assert "clusterformer::chunk_attention_triton" in called.names
    assert not [name for name in called.names if "softmax" in name or "scaled_dot" in name]


@pytest.mark.parametrize(
    "cls",
    [
        NeuralClusteringAttention,
        LocalAttention,
        *(pytest.param(c, marks=pytest.mark.slow) for c in (ReformerAttention, RoutingAttention)),
    ],
    ids=name,
)
def test_future_does_not_leak(cls, monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, "triton")
    layer = build(cls, True)
    x = torch.randn(1, 11, 8)
    changed = x.clone()
    changed[:, 6:] = 3 * torch.randn(1, 5, 8)
    with torch.no_grad():
        torch.testing.assert_close(layer(changed).values[:, :6], layer(x).values[:, :6])


@pytest.mark.slow
def test_the_whole_contract() -> None:
    """Every test of the contract and of its graphs, by these kernels."""
    chosen = " or ".join(cls.__name__ for cls in CHUNKED)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "-k", f"({chosen}) and not bfloat16",
         *(Path(__file__).with_name(f"test_contract{part}.py") for part in ("", "_graphs"))],
        env=os.environ | {VARIABLE: "triton"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
