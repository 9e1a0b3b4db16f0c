"""Training of neural clusters: what a step is, how the learning rate falls, and when it ends."""

import copy
import math

import pytest
import torch
from torch import Tensor

from clusterformer.clustering.fitting import LOOK_EVERY, train
from clusterformer.clustering.network import NeuralClusters, neighbor_loss


class Recorded(torch.optim.SGD):
    """Gradient descent that keeps the learning rate of each step."""

    def __init__(self, network: NeuralClusters, lr: float) -> None:
        super().__init__(network.parameters(), lr=lr)
        self.rates: list[float] = []

    def step(self, closure: object = None) -> None:
        self.rates.append(self.param_groups[0]["lr"])
        super().step()


def fitted(
    network: NeuralClusters, features: Tensor, near: Tensor, lr: float = 0.5, **options
) -> tuple[Recorded, int]:
    optimizer, generator = Recorded(network, lr), torch.Generator().manual_seed(0)
    given = {"steps": 1, "batch_size": 99, "balance": 1.0, "fill": False} | options
    return optimizer, train(network, optimizer, features, near, generator=generator, **given)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("paired", [False, True])
def test_a_step_descends_the_loss_of_all_pairs(paired: bool, weighted: bool) -> None:
    features, near = torch.randn(12, 4), torch.randint(12, (12, 1))
    pairs = torch.randint(12, (9, 2)) if paired else None
    weights = torch.rand(12) if weighted else None
    network = NeuralClusters(4, 3)
    expected = copy.deepcopy(network)
    fitted(network, features, near, balance=1.5, weights=weights, pairs=pairs)
    one, other = (torch.arange(12), near[:, 0]) if pairs is None else pairs.T
    logits = expected(features)
    weight = None if weights is None else weights[one]
    neighbor_loss(logits[one], logits[other], 1.5, weight).backward()
    torch.optim.SGD(expected.parameters(), lr=0.5).step()
    for ours, theirs in zip(network.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("anneal", "options", "periods"),
    [
        (False, {}, []),
        (True, {}, [12]),
        (True, {"merge_at": 4}, [12]),
        (True, {"merge_at": 4, "by_information": True}, [4, 8]),
    ],
    ids=str,
)
def test_the_rate_falls_along_half_a_cosine_and_again_after_merging_by_information(
    anneal: bool, options: dict, periods: list[int]
) -> None:
    network, features = NeuralClusters(4, 3, **options), torch.randn(40, 4)
    near = torch.randint(40, (40, 2))
    optimizer, taken = fitted(network, features, near, lr=0.1, steps=12, anneal=anneal, tol=-1.0)
    falling = [(1 + math.cos(math.pi * step / n)) / 2 for n in periods for step in range(n)]
    assert optimizer.rates == pytest.approx([0.1 * factor for factor in falling or 12 * [1.0]])
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert taken == 12


def test_training_ends_where_no_point_changes_its_cluster_but_not_before_merging() -> None:
    features, near = torch.randn(40, 4), torch.randint(40, (40, 2))
    ended = {}
    for merge_at in (0, 2 * LOOK_EVERY):
        network = NeuralClusters(4, 3, merge_at=merge_at)
        _, ended[merge_at] = fitted(network, features, near, lr=0.0, steps=500)
    assert ended == {0: 2 * LOOK_EVERY, 2 * LOOK_EVERY: 4 * LOOK_EVERY}
