"""Grids of the Triton kernels: CUDA takes 65,535 programs in each dimension but the first."""

import math

import pytest
import torch

from clusterformer.kernels import grouping, reference
from clusterformer.kernels.chunking import cluster_chunks, equal_blocks
from clusterformer.kernels.dispatch import VARIABLE

pytest.importorskip("triton")
from clusterformer.kernels import (
    _chunk_attention_triton,
    _chunking_triton,
    _grid_triton,
    _grouping_triton,
    _means_triton,
)

MODULES = _chunk_attention_triton, _chunking_triton, _grouping_triton, _means_triton
LENGTH, LIMIT = 5, 65_535


class Recorder:
    """Stands in for a kernel: keeps the grids of its launches and runs nothing."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid):
        self.grids.append(grid)
        return lambda *_, **__: None


@pytest.fixture
def kernels(monkeypatch) -> dict[str, Recorder]:
    """A recorder in place of each kernel that the modules launch."""
    monkeypatch.setenv(VARIABLE, "triton")
    found = {}
    for module in MODULES:
        for name in [name for name in vars(module) if name.endswith("_kernel")]:
            found[name] = Recorder()
            monkeypatch.setattr(module, name, found[name])
    return found


@pytest.mark.parametrize("rows", [70_000, 3 * 50_021])
def test_no_dimension_but_the_first_is_long(rows, kernels) -> None:
    points = torch.zeros(rows, LENGTH, 2, requires_grad=True)
    anchors = torch.zeros(3, 2, requires_grad=True)
    grouping.assign(points, anchors)[1].sum().backward()
    assignment = torch.zeros(rows, LENGTH, dtype=torch.long)
    grouping.sort(assignment, 3)
    grouped = reference.sort(assignment, 3)
    cluster_chunks(grouped, 2)
    x, none = torch.zeros(rows, 1, LENGTH, 2, requires_grad=True), torch.zeros(rows, LENGTH, 0)
    _chunk_attention_triton.chunk_attention(
        x, x, x, equal_blocks(grouped, 3), mask=None, causal=False, within=None,
        scale=1.0, self_bias=0.0, extra=(none, none),
    ).sum().backward()  # fmt: skip
    assert len(kernels) == 14
    for name, kernel in kernels.items():
        assert kernel.grids, name
        for grid in kernel.grids:
            assert max(grid[1:], default=1) <= LIMIT, (name, grid)
            assert math.prod(grid) % rows == 0, (name, grid)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (0, (0, 1)),
        (1, (1, 1)),
        (LIMIT, (LIMIT, 1)),
        (LIMIT + 1, (32_768, 2)),
        (3 * 50_021, (50_021, 3)),
        (LIMIT * LIMIT, (LIMIT, LIMIT)),
    ],
)
def test_rows_are_a_product_of_two_dimensions(rows, expected) -> None:
    assert _grid_triton.spread_rows(rows) == expected


@pytest.mark.parametrize("rows", [65_537, 2 * 65_537, LIMIT * LIMIT + 1])
def test_rows_that_no_product_gives_are_refused(rows) -> None:
    with pytest.raises(ValueError, match=f"{rows} rows"):
        _grid_triton.spread_rows(rows)


def test_results_are_those_of_two_dimensions(monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, "triton")
    points, anchors = torch.randn(4, 40, 3), torch.randn(3, 3)
    found = []
    for limit in (LIMIT, 3):
        monkeypatch.setattr(_grid_triton, "LIMIT", limit)
        leaves = [x.clone().requires_grad_() for x in (points, anchors)]
        assignment, means = grouping.assign(*leaves)
        gradients = torch.autograd.grad(means.square().sum(), leaves)
        grouped = grouping.sort(assignment, 3)
        cuts = equal_blocks(grouped, 3), cluster_chunks(grouped, 8)
        indices = [x for blocks in cuts for x in blocks[:5] if isinstance(x, torch.Tensor)]
        packed = _chunking_triton.packed(cuts[0])
        found.append([assignment, means, *gradients, *grouped, *indices, *packed])
    for two, three in zip(*found, strict=True):
        assert torch.equal(two, three)
