"""Export to ONNX for any length, run by onnxruntime."""

import inspect
from pathlib import Path

import pytest
import torch
from torch import Tensor

from clusterformer import attention
from clusterformer.attention import MultiHeadAttention

WIDTH, HEADS = 32, 4
SMALL = {"num_clusters": 5, "chunk_size": 4, "window": 5, "local_window": 3}


class Values(torch.nn.Module):
    def __init__(self, layer: MultiHeadAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.layer(x, mask).values


def batch(length: int) -> tuple[Tensor, Tensor]:
    mask = torch.arange(length) < torch.tensor([length, length // 2 + 1])[:, None]
    return torch.randn(2, length, WIDTH), mask


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FullAttention", "LocalAttention", "NeuralClusteringAttention"])
def test_onnxruntime_gives_the_same_values_at_any_length(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    cls = getattr(attention, name)
    known = inspect.signature(cls).parameters
    layer = MultiHeadAttention(
        cls(WIDTH, HEADS, **{k: v for k, v in SMALL.items() if k in known})
    ).eval()
    length = torch.export.Dim.DYNAMIC
    with torch.no_grad():
        program = torch.onnx.export(
            Values(layer), batch(19), dynamo=True, dynamic_shapes=({1: length}, {1: length})
        )
        assert program is not None
        program.save(tmp_path / "layer.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "layer.onnx")
        inputs = [value.name for value in session.get_inputs()]
        for size in (19, 33, 7, 64):
            x, mask = batch(size)
            found = session.run(None, dict(zip(inputs, (x.numpy(), mask.numpy()), strict=True)))
            expected = layer(x, mask).values
            torch.testing.assert_close(torch.from_numpy(found[0])[mask], expected[mask])
