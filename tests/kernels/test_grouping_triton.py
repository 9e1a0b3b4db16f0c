"""Assigning and sorting in Triton against the specification, interpreted on CPU."""

import pytest
import torch

from clusterformer.attention import MultiHeadAttention, NeuralClusteringAttention
from clusterformer.kernels import reference
from clusterformer.kernels.dispatch import VARIABLE

pytest.importorskip("triton")
from clusterformer.kernels import _grouping_triton as kernels
from clusterformer.kernels import grouping


@pytest.fixture(autouse=True)
def interpreted(monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, "triton")


SIZES = [(2, 1, 1, 3), (2, 63, 5, 16), (1, 100, 37, 20), (2, 70, 5, 16)]  # B, N, C, P


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("batch", "length", "clusters", "width"), SIZES)
def test_both_are_the_references(batch, length, clusters, width, padded) -> None:
    lengths = torch.tensor([[length], [max(1, length // 2)]])[:batch]
    mask = torch.arange(length) < lengths if padded else None
    points, anchors = torch.randn(batch, length, width), torch.randn(clusters, width)
    expected = reference.assign(anchors @ points.transpose(1, 2), mask).assignment
    found, _ = grouping.assign(points, anchors, mask)
    real = torch.ones_like(found, dtype=torch.bool) if mask is None else mask
    assert torch.equal(found[real], expected[real])
    for a, b in zip(
        kernels.sort(expected, clusters, mask),
        reference.sort(expected, clusters, mask),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_anchors_may_differ_from_sequence_to_sequence() -> None:
    points, anchors = torch.randn(2, 50, 8), torch.randn(2, 6, 8)
    expected = reference.assign(anchors @ points.transpose(1, 2)).assignment
    assert torch.equal(grouping.assign(points, anchors)[0], expected)


def test_a_giant_cluster_and_empty_ones_keep_their_order() -> None:
    assignment = torch.full((1, 130), 3)
    order, inverse, counts = kernels.sort(assignment, 7)
    assert torch.equal(order, torch.arange(130)[None])
    assert torch.equal(inverse, order)
    assert counts.tolist() == [[0, 0, 0, 130, 0, 0, 0]]


@pytest.mark.parametrize(
    ("causal", "similarity"),
    [
        (True, "cosine"),
        *(
            pytest.param(*form, marks=pytest.mark.slow)
            for form in [
                (False, "cosine"),
                (False, "dot"),
                ("masked", "cosine"),
                ("masked", "dot"),
                (True, "dot"),
            ]
        ),
    ],
)
def test_neural_clustering_is_the_same_through_them(causal, similarity, monkeypatch) -> None:
    options = {"similarity": similarity, "coupling": similarity == "cosine", "chunk_size": 4}
    core = NeuralClusteringAttention(16, 1, causal=causal, num_clusters=3, **options)
    layer = MultiHeadAttention(core)
    x = torch.randn(2, 11, 16)
    mask = torch.arange(11) < torch.tensor([[11], [7]])
    found = []
    for kernel in ("reference", "triton"):
        monkeypatch.setenv(VARIABLE, kernel)
        out = layer(x, key_mask=mask)
        assert out.grouping is not None
        loss = out.values[mask].square().sum() + out.grouping.centroids.square().sum()
        gradients = torch.autograd.grad(loss, list(layer.parameters()))
        found.append([out.values[mask].detach(), out.grouping.centroids.detach(), *gradients])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
