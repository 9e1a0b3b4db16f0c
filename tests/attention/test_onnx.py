"""Export to ONNX for any length, run by onnxruntime."""

import inspect
from pathlib import Path

import pytest
import torch
from torch import Tensor

from clusterformer import attention
from clusterformer.attention import MultiHeadAttention, mechanisms
from clusterformer.kernels.top_k import top_k_indices

WIDTH, HEADS = 32, 4
SMALL = {"num_clusters": 5, "chunk_size": 4, "window": 5, "local_window": 3, "top_k": 4}
EXPORTED = [cls.__name__ for cls in mechanisms() if False in cls.causal_forms]


class Values(torch.nn.Module):
    def __init__(self, layer: MultiHeadAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.layer(x, mask).values


def build(name: str, causal: bool = False) -> MultiHeadAttention:
    cls = getattr(attention, name)
    known = inspect.signature(cls).parameters
    options = {k: v for k, v in SMALL.items() if k in known}
    if "block_size" in known and "num_clusters" not in known:
        options["block_size"] = 4
    return MultiHeadAttention(cls(WIDTH, HEADS, causal=causal, **options)).eval()


def batch(length: int) -> tuple[Tensor, Tensor]:
    mask = torch.arange(length) < torch.tensor([length, length // 2 + 1])[:, None]
    return torch.randn(2, length, WIDTH), mask


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
def test_onnxruntime_gives_the_same_values_at_any_length(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    layer, length = build(name), torch.export.Dim.DYNAMIC
    with torch.no_grad():
        program = torch.onnx.export(
            Values(layer), batch(19), dynamo=True, dynamic_shapes=({1: length}, {1: length})
        )
        assert program is not None
        program.save(tmp_path / "layer.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "layer.onnx")
        inputs = [value.name for value in session.get_inputs()]
        for size in (19, 33, 7, 64, 1, 2, 100):
            x, mask = batch(size)
            found = session.run(None, dict(zip(inputs, (x.numpy(), mask.numpy()), strict=True)))
            expected = layer(x, mask).values
            torch.testing.assert_close(torch.from_numpy(found[0])[mask], expected[mask])


class CrossValues(torch.nn.Module):
    def __init__(self, layer: MultiHeadAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, mask: Tensor, memory: Tensor, real: Tensor) -> Tensor:
        return self.layer(x, mask, memory, real).values


CROSSING = [name for name in EXPORTED if getattr(attention, name).cross]


@pytest.mark.slow
@pytest.mark.parametrize("name", CROSSING)
def test_onnxruntime_gives_the_same_values_of_cross_attention(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    layer, length, other = build(name), torch.export.Dim("n", min=1), torch.export.Dim("m", min=1)
    shapes = ({1: length}, {1: length}, {1: other}, {1: other})
    with torch.no_grad():
        program = torch.onnx.export(
            CrossValues(layer), (*batch(19), *batch(23)), dynamo=True, dynamic_shapes=shapes
        )
        assert program is not None
        program.save(tmp_path / "layer.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "layer.onnx")
        names = [value.name for value in session.get_inputs()]
        for size, memory_size in ((19, 23), (33, 7), (5, 64), (40, 40)):
            given = (*batch(size), *batch(memory_size))
            inputs = {name: x.numpy() for name, x in zip(names, given, strict=True)}
            expected = CrossValues(layer)(*given)
            found = torch.from_numpy(session.run(None, inputs)[0])
            torch.testing.assert_close(found[given[1]], expected[given[1]])


def test_a_tree_has_no_onnx_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    with pytest.raises(ValueError, match=r"MultipoleAttention.*has no ONNX form.*causal=False"):
        build("MultipoleAttention", causal=True)(*batch(19))


@pytest.mark.parametrize("name", CROSSING)
def test_the_formulation_for_onnx_of_cross_attention_is_equal(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = build(name)
    for size, memory_size in ((19, 23), (40, 5)):
        given = (*batch(size), *batch(memory_size))
        expected = CrossValues(layer)(*given)
        with monkeypatch.context() as patch:
            patch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
            found = CrossValues(layer)(*given)
        torch.testing.assert_close(found[given[1]], expected[given[1]])


@pytest.mark.parametrize("name", EXPORTED)
def test_the_formulation_for_onnx_is_equal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operations that the export records, run by PyTorch."""
    layer = build(name)
    for size in (19, 100, 1):
        x, mask = batch(size)
        expected = layer(x, mask).values
        with monkeypatch.context() as patch:
            patch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
            found = layer(x, mask).values
        torch.testing.assert_close(found[mask], expected[mask])


@pytest.mark.parametrize("last", [False, True])
def test_the_same_of_equal_scores_are_found(last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for exponent in (-10, 0, 10):
        scores = torch.randn(4, 200) * 10.0**exponent
        scores[:, torch.randint(200, (60,))] = 0
        scores[:, torch.randint(200, (40,))] = float("-inf")
        scores[:, 100:150] = scores[:, 50:100]
        expected = top_k_indices(scores, 100, last=last)
        with monkeypatch.context() as patch:
            patch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
            assert torch.equal(top_k_indices(scores, 100, last=last), expected)
