"""The contract for compilers: one graph for all lengths and, of torch.export, for all batches."""

import pytest
import torch
from contract_layers import FORMS, HEADS, WIDTH, build, mask_of, name
from torch import Tensor

from clusterformer import attention
from clusterformer.attention import MultiHeadAttention

NOT_SHORT = {
    attention.ImprovedClusteredAttention,
    attention.IndexerAttention,
    attention.MultipoleAttention,
    attention.RoutingAttention,
}
"""Their exported programs refuse a text with fewer tokens, or blocks, than a query chooses."""


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
def test_exports_for_any_batch_and_length(cls, causal) -> None:
    layer = build(cls, causal)

    class Values(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.layer(x, mask).values

    rows, length = torch.export.Dim.DYNAMIC, torch.export.Dim.AUTO
    example = (torch.randn(2, 19, WIDTH), mask_of([19, 12], 19))
    sizes = {0: rows, 1: length}
    program = torch.export.export(
        Values(), example, dynamic_shapes=(sizes, sizes), strict=False
    ).module()
    short = [] if cls in NOT_SHORT else [[3, 1], [1]]
    for lengths in ([33, 20], [33], [20, 33, 9], *short):
        x, mask = torch.randn(len(lengths), max(lengths), WIDTH), mask_of(lengths, max(lengths))
        torch.testing.assert_close(program(x, mask)[mask], layer(x, mask).values[mask])


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, "masked"])
@pytest.mark.parametrize(
    "options",
    [
        {"num_clusters": 16, "min_width": 16},
        {"block_size": 16, "dense_length": 24},
        {"num_clusters": 5, "num_clusterings": 2, "local_heads": 2, "local_window": 4},
    ],
)
def test_exports_with_a_width_in_tokens_for_any_batch_and_length(causal, options) -> None:
    core = attention.NeuralClusteringAttention(WIDTH, HEADS, causal=causal, **options)
    layer, any_size = MultiHeadAttention(core).eval(), torch.export.Dim.DYNAMIC
    sizes = {0: any_size, 1: any_size}
    program = torch.export.export(
        layer, (torch.randn(2, 19, WIDTH),), dynamic_shapes=(sizes,), strict=False
    ).module()
    for rows, length in ((2, 2), (3, 33), (1, 200)):
        x = torch.randn(rows, length, WIDTH)
        torch.testing.assert_close(program(x).values, layer(x).values)


@pytest.mark.parametrize(
    "core",
    [
        pytest.param(core, marks=[] if type(core) is attention.LocalAttention else pytest.mark.slow)
        for core in (
            attention.LocalAttention(WIDTH, HEADS, causal=True, window=40),
            attention.ImprovedClusteredAttention(WIDTH, HEADS, num_clusters=5, top_k=40),
            attention.BlockTopKAttention(WIDTH, HEADS, block_size=40),
            attention.BlockTopKAttention(WIDTH, HEADS, causal=True, block_size=40),
            attention.NativeSparseAttention(WIDTH, HEADS, block_size=40),
            attention.NativeSparseAttention(WIDTH, HEADS, causal=True, block_size=40),
        )
    ],
    ids=lambda core: name(type(core)),
)
def test_an_example_shorter_than_a_block_or_window_exports_for_longer_texts(core) -> None:
    layer, any_size = MultiHeadAttention(core).eval(), torch.export.Dim.DYNAMIC
    example = (torch.randn(2, 19, WIDTH),)
    program = torch.export.export(
        layer, example, dynamic_shapes=({0: any_size, 1: any_size},), strict=False
    ).module()
    x = torch.randn(3, 150, WIDTH)
    torch.testing.assert_close(program(x).values, layer(x).values)
