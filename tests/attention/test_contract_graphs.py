"""The contract for compilers: one graph for every length, under torch.compile and torch.export."""

import pytest
import torch
from contract_layers import FORMS, HEADS, WIDTH, build, mask_of, name
from torch import Tensor

from clusterformer import attention
from clusterformer.attention import MultiHeadAttention


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "causal", "backend"),
    [
        pytest.param(cls, causal, backend, marks=[] if quick else pytest.mark.slow)
        for cls, causal in FORMS
        for backend in ("eager", "aot_eager")
        for quick in [
            backend == "eager" and cls is attention.NeuralClusteringAttention and causal is True
        ]
    ],
    ids=name,
)
def test_compiles_once_for_all_lengths(cls, causal, backend: str) -> None:
    """Dynamo's graph and guards; AOTAutograd's own pass is also that of the export below."""
    torch._dynamo.reset()
    layer = build(cls, causal)
    compiled = torch.compile(layer, dynamic=True, fullgraph=True, backend=backend)
    with torch.no_grad():
        for length in (19, 31, 40, 53):
            x = torch.randn(2, length, WIDTH)
            with torch._dynamo.config.patch(error_on_recompile=length > 31):
                torch.testing.assert_close(compiled(x).values, layer(x).values)


@pytest.mark.parametrize(
    ("cls", "causal"),
    [
        pytest.param(cls, causal, marks=[] if quick else pytest.mark.slow)
        for cls, causal in FORMS
        for quick in [cls is attention.NeuralClusteringAttention and causal is False]
    ],
    ids=name,
)
def test_exports_for_any_length(cls, causal) -> None:
    layer = build(cls, causal)

    class Values(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.layer(x, mask).values

    length = torch.export.Dim.AUTO
    example = (torch.randn(2, 19, WIDTH), mask_of([19, 12], 19))
    program = torch.export.export(
        Values(), example, dynamic_shapes=({1: length}, {1: length}), strict=False
    )
    x, mask = torch.randn(2, 33, WIDTH), mask_of([33, 20], 33)
    torch.testing.assert_close(program.module()(x, mask)[mask], layer(x, mask).values[mask])


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, "masked"])
@pytest.mark.parametrize(
    "options", [{"num_clusters": 16, "min_width": 16}, {"block_size": 16, "dense_length": 24}]
)
def test_exports_with_a_width_in_tokens_for_any_length(causal, options) -> None:
    core = attention.NeuralClusteringAttention(WIDTH, HEADS, causal=causal, **options)
    layer, length = MultiHeadAttention(core).eval(), torch.export.Dim.DYNAMIC
    program = torch.export.export(
        layer, (torch.randn(2, 19, WIDTH),), dynamic_shapes=({1: length},), strict=False
    ).module()
    for size in (2, 33, 200):
        x = torch.randn(2, size, WIDTH)
        torch.testing.assert_close(program(x).values, layer(x).values)
