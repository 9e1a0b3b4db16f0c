"""K-means in a vector space, against a literal version; limits on cluster sizes."""

import math

import pytest
import torch
from torch import Tensor

from clusterformer.clustering.kmeans import cluster_capacity, kmeans
from clusterformer.clustering.seeding import seeds
from clusterformer.kernels import reference
from clusterformer.kernels.chunking import capped_blocks
from clusterformer.kernels.rows import gather_own, resort

OFFSET = torch.tensor([0.3])


def literal_kmeans(points: Tensor, clusters: int, iterations: int) -> Tensor:
    start = seeds(points.square().sum(-1)[None], clusters, OFFSET)[0]
    centroids = points[start].clone()
    for _ in range(iterations):
        assignment = torch.cdist(points, centroids).argmin(1)
        for cluster in assignment.unique():
            centroids[cluster] = points[assignment == cluster].mean(0)
    return torch.cdist(points, centroids).argmin(1)


def sizes(assignment: Tensor, clusters: int) -> Tensor:
    return torch.stack([row.bincount(minlength=clusters) for row in assignment])


@pytest.mark.parametrize("iterations", [0, 1, 5])
def test_kmeans_is_lloyds(iterations: int) -> None:
    points = torch.randn(3, 50, 4)
    found = kmeans(points, 7, OFFSET, iterations=iterations)
    for row, assignment in zip(points, found, strict=True):
        assert torch.equal(assignment, literal_kmeans(row, 7, iterations))


def test_a_cluster_without_points_keeps_its_centroid() -> None:
    points = torch.tensor([10.0, 10.0, 10.0, 10.0, 1.0])[:, None]  # all starts are equal
    found = kmeans(points[None], 3, OFFSET, iterations=2)[0]
    assert torch.equal(found, literal_kmeans(points, 3, 2))
    assert found.tolist() == [1, 1, 1, 1, 0]


def test_a_wide_cap_changes_nothing() -> None:
    points = torch.randn(2, 40, 4)
    assert torch.equal(kmeans(points, 5, OFFSET, cap=5.0), kmeans(points, 5, OFFSET))


@pytest.mark.parametrize("cap", [1.0, 1.25, 2.0])
@pytest.mark.parametrize("spread", [0.0, 1e-3, 1.0])
def test_no_cluster_is_larger_than_the_cap(cap: float, spread: float) -> None:
    points = torch.ones(3, 41, 4) + spread * torch.randn(3, 41, 4)
    points[:, :5] *= -4
    mask = torch.rand(3, 41) < 0.8
    assignment = kmeans(points, 6, OFFSET, mask, cap=cap)
    for row in range(3):
        limit = math.ceil(cap * int(mask[row].sum()) / 6)
        assert sizes(assignment[row][mask[row]][None], 6).max() <= limit


def test_the_nearest_stay_in_a_full_cluster() -> None:
    """Two heaps of 6 and 2 points, room for 5 each: the outlier of the large one has to go."""
    heap = torch.tensor([[10.0], [10.1], [9.9], [10.2], [10.05], [13.0]])
    points = torch.cat([heap, torch.tensor([[-10.0], [-10.1]])])[None]
    free = kmeans(points, 2, OFFSET)[0]
    assert (free[:6] == free[0]).all()
    capped = kmeans(points, 2, OFFSET, cap=1.25)[0]
    assert (capped[:5] == capped[0]).all()
    assert capped[5] == capped[6] != capped[0]


def test_padding_does_not_count() -> None:
    points = torch.randn(3, 30, 4)
    mask = torch.rand(3, 30) < 0.6
    found = kmeans(points, 5, OFFSET, mask, cap=1.5)
    for row in range(3):
        alone = kmeans(points[row][mask[row]][None], 5, OFFSET, cap=1.5)
        assert torch.equal(found[row][mask[row]], alone[0])


@pytest.mark.parametrize("cap", [None, 1.0])
def test_points_have_clusters_of_their_own_if_there_are_enough(cap: float | None) -> None:
    points = torch.randn(2, 13, 4)
    points[:, 4] = 0
    for clusters in (13, 20):
        assert sizes(kmeans(points, clusters, OFFSET, cap=cap), clusters).max() == 1
    real = torch.arange(13) < 5
    alike = kmeans(torch.ones(1, 13, 4), 5, OFFSET, real[None], cap=cap)
    assert len(alike[0, real].unique()) == 5  # as without padding


def test_every_real_point_has_a_place() -> None:
    points = torch.randn(3, 29, 4)
    mask = torch.rand(3, 29) < 0.7
    assignment = kmeans(points, 6, OFFSET, mask, cap=1.5)
    blocks = capped_blocks(reference.sort(assignment, 6, mask), cluster_capacity(29, 6, 1.5), mask)
    back = resort(gather_own(points, blocks), blocks)
    torch.testing.assert_close(back, points.masked_fill(~mask[..., None], 0.0))
    owner = torch.arange(6)[:, None].expand(blocks.members.shape)
    held = assignment.gather(1, blocks.members.flatten(1)).view(owner.shape)
    assert torch.equal(held[blocks.filled], owner[blocks.filled])


@pytest.mark.parametrize("cap", [None, 1.0])
def test_rounding_does_not_decide_a_tie(cap: float | None) -> None:
    """The corners of squares are as far from one centroid as from another."""
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0], [-1.0, 1.0]])
    points = corners.repeat(6, 1)[None]
    expected = kmeans(points, 3, OFFSET, cap=cap)
    for _ in range(20):
        rounded = points * (1 + 1e-7 * torch.randn_like(points))
        assert torch.equal(kmeans(rounded, 3, OFFSET, cap=cap), expected)
