"""Groups of clusters against all partitions, written out; pairs of mutual neighbours."""

import itertools

import pytest
import torch
from torch import Tensor

from clusterformer.clustering import informative_groups as module
from clusterformer.clustering.informative_groups import informative_groups
from clusterformer.clustering.merging import merges
from clusterformer.clustering.neighbors import mutual_pairs


def information(joint: Tensor, group: Tensor) -> float:
    """I = sum J log(J / (s s)) of the groups of clusters, written out."""
    member = torch.eye(int(group.max()) + 1, dtype=torch.float64)[group]
    joint = member.T @ (joint / joint.sum()) @ member
    chance = joint.sum(1)[:, None] * joint.sum(1)
    return float(torch.special.xlogy(joint, joint / chance.clamp(min=1e-300)).sum())


def greedy(joint: Tensor, count: int) -> Tensor:
    group = torch.arange(len(joint))
    for merge in itertools.islice(merges(joint), len(joint) - count):
        group[group == merge.gone] = merge.kept
    return group.unique(return_inverse=True)[1]


def random_joint(clusters: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    joint = torch.rand(clusters, clusters, dtype=torch.float64, generator=generator) ** 4
    return joint + joint.T + torch.eye(clusters)


def test_no_partition_of_seven_clusters_is_more_informative() -> None:
    labels = itertools.product(range(3), repeat=7)
    partitions = [each for each in labels if list(dict.fromkeys(each)) == [0, 1, 2]]  # each once
    assert len(partitions) == 301
    best = as_good = 0
    for seed in range(20):
        joint = random_joint(7, seed)
        found = information(joint, informative_groups(joint, 3))
        top = max(information(joint, torch.tensor(each)) for each in partitions)
        assert found <= top + 1e-9
        best += found > top - 1e-9
        as_good += information(joint, greedy(joint, 3)) > top - 1e-9
    assert best == 20
    assert as_good < best  # merges alone, which are never undone, do not find it as often


def test_no_move_of_one_cluster_gains() -> None:
    joint = random_joint(24, 0)
    group = informative_groups(joint, 5)
    assert group.unique().tolist() == [0, 1, 2, 3, 4]
    reached = information(joint, group)
    assert reached >= information(joint, greedy(joint, 5))
    for cluster, to in itertools.product(range(24), range(5)):
        moved = group.clone()
        moved[cluster] = to
        assert information(joint, moved) <= reached + 1e-9


def test_a_search_from_merges_alone_that_ends_too_early_is_not_the_last() -> None:
    joint = random_joint(24, 6)
    stuck = 0.10492  # where moves and exchanges from the groups of `merges` end
    assert information(joint, informative_groups(joint, 5)) > stuck + 0.01


def test_more_clusters_are_searched_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """By moves alone, then by merges alone; each result is no better than the one before."""
    joint = random_joint(24, 6)
    found = [information(joint, informative_groups(joint, 5))]
    monkeypatch.setattr(module, "_EXCHANGES", 24 * 5**2 - 1)
    moved = informative_groups(joint, 5)
    found.append(information(joint, moved))
    for cluster, to in itertools.product(range(24), range(5)):
        group = moved.clone()
        group[cluster] = to
        assert information(joint, group) <= found[1] + 1e-9
    monkeypatch.setattr(module, "_MOVES", 24 * 5**2 - 1)
    assert torch.equal(informative_groups(joint, 5), greedy(joint, 5))
    found.append(information(joint, greedy(joint, 5)))
    assert found == sorted(found, reverse=True)
    assert found[0] > found[2]


def test_empty_clusters_and_extreme_counts() -> None:
    joint = random_joint(6, 1)
    joint[2] = joint[:, 2] = 0.0
    assert informative_groups(joint, 6).tolist() == [0, 1, 2, 3, 4, 5]
    assert informative_groups(joint, 1).tolist() == [0] * 6
    assert len(informative_groups(joint, 3).unique()) == 3
    assert len(informative_groups(torch.zeros(6, 6), 3).unique()) == 3


def test_groups_do_not_depend_on_the_order_of_clusters() -> None:
    joint, order = random_joint(12, 2), torch.randperm(12)
    found, again = informative_groups(joint, 4), informative_groups(joint[order][:, order], 4)
    same = found[order]
    assert torch.equal(same[:, None] == same, again[:, None] == again)


def test_mutual_pairs_are_neighbours_of_each_other() -> None:
    near = torch.tensor([[1, 2], [0, 2], [3, 0], [2, 1]])
    assert {tuple(pair) for pair in mutual_pairs(near).tolist()} == {
        (0, 1), (1, 0), (0, 2), (2, 0), (2, 3), (3, 2),
    }  # fmt: skip
    assert mutual_pairs(torch.tensor([[1], [2], [0]])).tolist() == [[0, 1], [1, 2], [2, 0]]


@pytest.mark.parametrize("count", [2, 5])
def test_planted_groups_are_found_among_many_clusters(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    group = torch.arange(60) % count
    joint = torch.rand(60, 60, generator=generator) * (0.1 + 2.0 * (group[:, None] == group))
    found = informative_groups(joint + joint.T, count)
    assert torch.equal(found[:, None] == found, group[:, None] == group)
