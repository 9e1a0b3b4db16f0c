"""Every operation as PyTorch wants it: schema, shapes without data, gradients, one graph."""

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from clusterformer.attention import MultiHeadAttention, NeuralClusteringAttention
from clusterformer.kernels import (
    _chunk_attention_cpu,
    _cluster_chunks_cpu,
    _narrow_blocks_cpu,
    attention_and_masses,
    gathered_attention,
    merged_attention,
    reference,
)
from clusterformer.kernels.blocks import Blocks, window_mask
from clusterformer.kernels.chunking import equal_blocks
from clusterformer.kernels.dispatch import VARIABLE

UNDIFFERENTIATED = ("test_schema", "test_faketensor")
N = 5


def leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def check(
    module: object, inputs: tuple, saved: tuple[Tensor, ...], options: tuple, needed: tuple = ()
) -> None:
    """The forward, and the backward with what the forward saved for it."""
    opcheck(module._forward, (*inputs, *options))  # type: ignore[attr-defined]
    given = [x.detach() for x in (torch.randn_like(inputs[0]), *inputs, *saved)]
    opcheck(module._backward, (*given, *options, *needed), test_utils=UNDIFFERENTIATED)  # type: ignore[attr-defined]


def more_keys(given: bool, *shape: int) -> list[Tensor]:
    """Values and masses of further keys; empty for none."""
    return leaves(shape, shape[:-1]) if given else [torch.empty(0), torch.empty(0)]


@pytest.fixture
def blocks() -> Blocks:
    return equal_blocks(reference.sort(torch.tensor([[1, 0, 0, 1, 0]]), 2), 2)


@pytest.mark.slow
@pytest.mark.parametrize("more", [False, True])
def test_chunk_attention_in_triton(more: bool, blocks) -> None:
    pytest.importorskip("triton")
    from clusterformer.kernels import _chunk_attention_triton as module

    rows = leaves(*3 * ((1, 1, N, 4),), (1, N, 3), (1, N, 3))
    none = torch.empty(0, dtype=torch.bool)
    members, own_entries = module.packed(blocks)
    further = more_keys(more, 1, 1, N, 4)
    inputs = *rows, *further, members, blocks.visible, own_entries, none
    options = (blocks.look_back, 0.3, 0.0, False, 0, False)
    check(module, inputs, module._forward(*inputs, *options), options)


@pytest.mark.parametrize("more", [False, True])
def test_chunk_attention_on_cpu(more: bool, blocks) -> None:
    rows = leaves(*3 * ((N, 1, 4),), (N, 3), (N, 3)) + more_keys(more, N, 1, 4)
    mask = window_mask(blocks)[None]
    inputs = *rows, blocks.members[None], blocks.own_filled[None], mask
    options = (blocks.look_back, 0.3, 0.0)
    outputs = _chunk_attention_cpu._forward(*inputs, *options)
    check(_chunk_attention_cpu, inputs, outputs, options)


@pytest.mark.parametrize("more", [False, True])
def test_narrow_blocks_on_cpu(more: bool, blocks) -> None:
    rows = leaves(*3 * ((N, 1, 4),), (N, 3), (N, 3)) + more_keys(more, N, 1, 4)
    inputs = *rows, blocks.members, blocks.own_filled, window_mask(blocks)
    options = (blocks.look_back, 0.3)
    outputs = _narrow_blocks_cpu._forward(*inputs, *options)
    check(_narrow_blocks_cpu, inputs, outputs, options)


@pytest.mark.parametrize("prefix", [0, 2])
def test_cluster_chunks_on_cpu(prefix: int) -> None:
    rows = leaves(*3 * ((1, N, 1, 4),), (1, N, 3), (1, N, 3))
    order, inverse, counts = reference.sort(torch.tensor([[1, 0, 0, 1, 0]]), 2)
    skipped = torch.tensor([[1, 1]]) if prefix else torch.zeros(1, 2, dtype=torch.long)
    inputs = *rows, order, inverse, counts, skipped
    options = (1, 1, prefix, 0.3, 0.0)
    outputs = _cluster_chunks_cpu._forward(*inputs, *options)
    check(_cluster_chunks_cpu, inputs, outputs, options)


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("weights_learn", [True, False])
def test_gathered_attention(weights_learn: bool, more: bool) -> None:
    needed = ([weights_learn, weights_learn, True, more, more and weights_learn],)
    members, seen = torch.tensor([[0, 2], [1, 0]]), torch.tensor([[0, 3, 4], [1, 2, 3]])
    filled = torch.tensor([[True, True], [True, False]])
    rows = leaves((N, 4), (N, 4), (N, 4), *[(N, 4), (N, 1)] * more)
    none = [] if more else [torch.empty(0, 4), torch.empty(0, 1)]
    inputs = *rows, *none, members, filled, seen, seen >= 0
    check(gathered_attention, inputs, (), (0.3,), needed)


def test_merged_attention() -> None:
    inputs = tuple(leaves(*4 * ((1, N, 4),), (1, N, 1)))
    check(merged_attention, inputs, merged_attention._forward(*inputs), ())


def test_attention_and_masses() -> None:
    inputs = tuple(leaves((2, N, 4), (2, 3, 4), (2, 3, 6), (2, 1, 3)))
    outputs = attention_and_masses._forward(*inputs)
    opcheck(attention_and_masses._forward, inputs)
    saved = [x.detach() for x in (*inputs, *outputs)]
    given = torch.randn(2, N, 6), torch.randn(2, N, 1), *saved
    opcheck(attention_and_masses._backward, given, test_utils=UNDIFFERENTIATED)


@pytest.mark.parametrize("padded", [False, True])
def test_grouping_in_triton(padded: bool) -> None:
    pytest.importorskip("triton")
    from clusterformer.kernels import _grouping_triton as module

    mask = torch.tensor([[True, True, False, True, False]]) if padded else None
    real = torch.ones(1, N, dtype=torch.bool) if mask is None else mask
    given = torch.randn(1, N, 4), torch.randn(2, 4), real, torch.randn(1, 2)
    opcheck(module.assign, given, test_utils=UNDIFFERENTIATED)
    chosen = torch.tensor([[1, 0, 0, 1, 0]])
    opcheck(module._sort, (chosen, 2, mask), test_utils=UNDIFFERENTIATED)


@pytest.mark.parametrize("padded", [False, True])
def test_chunking_in_triton(padded: bool, blocks) -> None:
    pytest.importorskip("triton")
    from clusterformer.kernels import _chunking_triton as module

    mask = torch.tensor([[True, True, False, True, False]]) if padded else None
    order, inverse, counts = reference.sort(torch.tensor([[1, 0, 0, 1, 0]]), 2, mask)
    given = order, inverse, counts.sum(1, keepdim=True), mask, 2, 3, 2, 1, 1, 1
    opcheck(module.circle, given, test_utils=UNDIFFERENTIATED)
    given = order, inverse, counts, mask, 4, 2, 1, 0
    opcheck(module.chunks, given, test_utils=UNDIFFERENTIATED)
    given = blocks.members, blocks.filled, blocks.copies, blocks.visible, blocks.look_back
    opcheck(module._pack, given, test_utils=UNDIFFERENTIATED)


@pytest.mark.parametrize("own", [False, True])
def test_centroid_means_in_triton(own: bool) -> None:
    pytest.importorskip("triton")
    from clusterformer.kernels import _means_triton as module

    points, anchors = leaves((1, N, 4), (*own * (1,), 2, 4))
    inputs = points, anchors, torch.tensor([[True, True, False, True, False]])
    opcheck(module.centroid_means, inputs)
    means, normalizer = module.centroid_means(*inputs)
    given = [x.detach() for x in (torch.randn_like(means), *inputs, means, normalizer)]
    opcheck(module._backward, given, test_utils=UNDIFFERENTIATED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernels", "causal"),
    [
        (None, True),
        *(
            pytest.param(kernels, causal, marks=pytest.mark.slow)
            for kernels, causal in [("triton", False), ("triton", True), (None, False)]
        ),
    ],
)
def test_forward_and_backward_compile_as_one_graph(kernels, causal, monkeypatch) -> None:
    if kernels == "triton":
        pytest.importorskip("triton")
    monkeypatch.delenv(VARIABLE, raising=False)
    if kernels:
        monkeypatch.setenv(VARIABLE, kernels)
    torch._dynamo.reset()
    core = NeuralClusteringAttention(8, 1, num_clusters=2, chunk_size=3, causal=causal)
    layer = MultiHeadAttention(core)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(1, 7, 8)
    found = []
    for form in (layer, compiled):
        made = form(x)
        loss = made.values.square().sum() + made.grouping.centroids.square().sum()
        found.append([made.values, *torch.autograd.grad(loss, core.space.weight)])
    torch.testing.assert_close(*found)
