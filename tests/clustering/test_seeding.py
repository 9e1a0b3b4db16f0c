"""Starts of a clustering."""

import pytest
import torch

from clusterformer.clustering.seeding import seeds


@pytest.mark.parametrize("offset", [0.0, 0.5, 0.999])
@pytest.mark.parametrize("clusters", [6, 7, 20])
def test_every_point_starts_a_cluster_if_there_are_enough(offset: float, clusters: int) -> None:
    weights = torch.tensor([[5.0, 1e-6, 0.0, 3.0, 1.0, 2.0, 0.5]])
    assert set(seeds(weights, clusters, offset)[0].tolist()) == {0, 1, 3, 4, 5, 6}


def test_chances_are_in_proportion_to_weights() -> None:
    weights = torch.tensor([[1.0, 4.0, 2.0, 3.0, 0.0, 6.0]])
    draws = torch.stack([seeds(weights, 2, offset)[0] for offset in torch.arange(1600) / 1600])
    found = torch.bincount(draws.flatten(), minlength=6) / len(draws)
    torch.testing.assert_close(found, 2 * weights[0] / weights.sum(), atol=2e-3, rtol=0)


def test_heavy_points_are_drawn_once_and_leave_room_for_others() -> None:
    weights = torch.ones(1, 50)
    weights[0, 7], weights[0, 30] = 1e6, 1e3
    drawn = seeds(weights, 5, 0.5)[0].tolist()
    assert {7, 30} < set(drawn)
    assert len(set(drawn)) == 5


def test_a_row_without_weights_is_harmless() -> None:
    found = seeds(torch.zeros(2, 5), 3, 0.5)
    assert ((found >= 0) & (found < 5)).all()


def test_an_offset_in_half_precision_draws_as_many() -> None:
    drawn = seeds(torch.ones(1, 1500), 1000, torch.tensor([0.5], dtype=torch.bfloat16))
    assert torch.equal(drawn, seeds(torch.ones(1, 1500), 1000, 0.5))
