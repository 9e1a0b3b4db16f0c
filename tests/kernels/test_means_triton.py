"""Centroid means in Triton against the specification, interpreted on CPU: values, gradients."""

import itertools

import pytest
import torch
from torch import Tensor

from clusterformer.kernels import grouping, tiles
from clusterformer.kernels.dispatch import VARIABLE

pytest.importorskip("triton")

CASES = [  # N, W, C, padded, anchors of each sequence
    (1, 16, 5, True, True),
    (63, 3, 70, False, True),
    (70, 3, 5, True, False),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in [
            (300, 3, 5, True, False),
            (20, 270, 3, True, False),
            (1, 3, 1, False, False),
            (63, 40, 5, True, False),
            (100, 16, 70, True, True),
            (300, 16, 5, True, False),
            (300, 3, 5, False, True),
            (40, 150, 5, False, False),
        ]
    ),
]
"""Some in several segments, tiles of centroids and parts of columns."""


@pytest.fixture(autouse=True)
def short_segments(monkeypatch) -> None:
    """So that 300 tokens have several."""
    monkeypatch.setenv(VARIABLE, "triton")
    monkeypatch.setattr(tiles, "MIN_SEGMENT", 64)


def mask_of(length: int) -> Tensor:
    """The first sequence holds no token."""
    return torch.arange(length) < torch.tensor([[0], [max(1, length * 2 // 3)]])


def inputs(length: int, width: int, clusters: int, own: bool = False) -> list[Tensor]:
    return [torch.randn(2, length, width), 0.5 * torch.randn(*own * (2,), clusters, width)]


def run(tensors: list[Tensor], mask: Tensor | None) -> list[Tensor]:
    """Means, and gradients of points and anchors."""
    points, anchors = leaves = [x.detach().requires_grad_() for x in tensors]
    _, means = grouping.assign(points, anchors, mask)
    gradient = torch.linspace(-1, 1, means.numel()).view(means.shape)
    return [means.detach(), *torch.autograd.grad(means, leaves, gradient)]


def agree(tensors: list[Tensor], mask: Tensor | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients are the reference's."""
    found = run(tensors, mask)
    monkeypatch.setenv(VARIABLE, "reference")
    for a, b in zip(found, run(tensors, mask), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("length", "width", "clusters", "padded", "own"), CASES)
def test_means_and_gradients_are_the_references(
    length, width, clusters, padded, own, monkeypatch
) -> None:
    agree(inputs(length, width, clusters, own), mask_of(length) if padded else None, monkeypatch)


def test_rows_may_lie_anywhere() -> None:
    tensors, mask = inputs(30, 16, 5, own=True), mask_of(30)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors]
    backwards = mask.t().contiguous().t()
    for a, b in zip(run(strided, backwards), run(tensors, mask), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
def test_padding_may_come_first(monkeypatch) -> None:
    agree(inputs(300, 3, 5), mask_of(300).flip(1), monkeypatch)


@pytest.mark.slow
def test_the_same_bits_twice() -> None:
    tensors, mask = inputs(130, 16, 5), mask_of(130)
    first, second = (run(tensors, mask) for _ in range(2))
    assert all(itertools.starmap(torch.equal, zip(first, second, strict=True)))


@pytest.mark.parametrize(
    "poison", [float("nan"), pytest.param(float("inf"), marks=pytest.mark.slow)]
)
def test_padding_reaches_nothing(poison) -> None:
    tensors, mask = inputs(30, 16, 5), mask_of(30)
    points, anchors = tensors
    dirty = [points.masked_fill(~mask[..., None], poison), anchors]
    for a, b in zip(run(tensors, mask), run(dirty, mask), strict=True):
        assert torch.equal(a, b)
    means, d_points, d_anchors = run(dirty, mask)
    assert (means[0] == 0).all()
    assert (d_points[~mask] == 0).all()
    assert d_anchors.isfinite().all()


def test_segments_fill_a_gpu_and_are_long() -> None:
    assert tiles.segment_length(300, 1) == 128
    for length, programs in [(1, 1), (1000, 8), (65536, 8), (65536, 1000), (10**6, 3)]:
        tokens = tiles.segment_length(length, programs)
        assert tokens % 64 == 0
        pieces = -(-length // tokens)
        assert pieces * programs < tiles.NUM_PROGRAMS + programs
        assert tokens >= min(length, tiles.MIN_SEGMENT)
