"""Clusters that merge: the hierarchy, by information, and where merging stops."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from scipy.cluster.hierarchy import fcluster, is_valid_linkage
from sklearn.base import clone
from sklearn.datasets import load_digits, make_blobs
from sklearn.metrics import adjusted_rand_score

from clusterformer.clustering import NeuralClustering
from clusterformer.clustering.merging import Merge, merges, merges_above_chance, natural_count


def small(n_clusters: int | str = 3, **options: object) -> NeuralClustering:
    return NeuralClustering(n_clusters, **({"max_iter": 60, "random_state": 0} | options))


def test_the_hierarchy_joins_groups_of_clusters() -> None:
    centers = [[0, 0], [3, 0], [20, 0], [23, 0]]
    x, y = make_blobs(400, centers=centers, cluster_std=0.3, random_state=0)
    fitted = small(4).fit(x)
    assert adjusted_rand_score(y, fitted.labels_) > 0.9
    assert is_valid_linkage(fitted.linkage_, throw=True)
    halves = fcluster(fitted.linkage_, 2, "maxclust")[fitted.labels_]
    assert adjusted_rand_score(y // 2, halves) > 0.95
    assert small(1).fit(x).linkage_.shape == (0, 4)


def test_merges_above_chance_written_out() -> None:
    joint = torch.rand(7, 7, dtype=torch.float64)
    joint += joint.T.clone()
    groups = {cluster: [cluster] for cluster in range(7)}

    def lift(pair: tuple[int, int]) -> float:
        one, other = (groups[cluster] for cluster in pair)
        return float(joint[one][:, other].sum() / (joint[one].sum() * joint[other].sum()))

    for kept, gone in merges_above_chance(joint):
        assert (kept, gone) == max(itertools.combinations(groups, 2), key=lift)
        groups[kept] += groups.pop(gone)
    assert len(groups) == 1


def test_a_loss_rises_above_all_before_it_or_not_at_all() -> None:
    shares, modularity = [1.0, 0.5, 1.0, 1.0], [0.5, 0.9, 0.95, 1.0]
    found = [
        Merge(0, 1, share / (5 - index), 1.0, modularity[index])
        for index, share in enumerate(shares)
    ]
    assert natural_count(found) == 2  # of the largest modularity; not 3, where a dip ends


def test_merges_lose_the_least_information_written_out() -> None:
    def information(joint: torch.Tensor) -> float:
        chance = joint.sum(1)[:, None] * joint.sum(1)
        return float(torch.special.xlogy(joint, joint / chance.clamp(min=1e-300)).sum())

    def merged(joint: torch.Tensor, a: int, b: int) -> torch.Tensor:
        sums = torch.eye(len(joint), dtype=joint.dtype)
        sums[a, b], sums[b, b] = 1.0, 0.0
        return sums @ joint @ sums.T

    joint = torch.rand(6, 6, dtype=torch.float64) ** 4
    joint = (joint + joint.T) / (joint + joint.T).sum()
    left = set(range(6))
    for merge in merges(joint):
        losses = {
            (a, b): information(joint) - information(merged(joint, a, b))
            for a in left
            for b in left
            if a < b
        }
        assert (merge.kept, merge.gone) == min(losses, key=losses.__getitem__)
        assert merge.loss == pytest.approx(min(losses.values()))
        assert merge.loss <= merge.split + 1e-12
        chance = (joint.sum(1) ** 2).sum()
        assert merge.modularity == pytest.approx(float(joint.diagonal().sum() - chance))
        joint = merged(joint, merge.kept, merge.gone)
        left.remove(merge.gone)
    assert len(left) == 1


@pytest.mark.parametrize("groups", [2, 3, 5])
def test_merging_stops_where_groups_of_clusters_are_apart(groups: int) -> None:
    group = torch.arange(20) % groups
    joint = 0.02 * torch.rand(20, 20) + (group[:, None] == group)  # within a group all are near
    assert natural_count(list(merges(joint + joint.T))) == groups


def test_merging_does_not_stop_because_clusters_have_become_large() -> None:
    # two clusters of two have more to lose than two of ten; only the share of it tells them apart
    shares = [0.45 if count > 10 else 0.6 for count in range(40, 1, -1)]
    losses = [
        share * 2 * np.log(2) / count for share, count in zip(shares, range(40, 1, -1), strict=True)
    ]
    assert natural_count([Merge(0, 1, loss, loss, 1.0) for loss in losses]) == 10


def test_merging_does_not_stop_because_the_first_merges_join_single_points() -> None:
    shares = [1e-9 if count > 10 else 0.1 if count > 3 else 1.0 for count in range(40, 1, -1)]
    losses = [share / count for share, count in zip(shares, range(40, 1, -1), strict=True)]
    assert natural_count([Merge(0, 1, loss, loss, 1.0) for loss in losses]) == 3


def test_modularity_decides_where_no_merge_loses_clearly_more() -> None:
    # (number of clusters, share of what the merge could lose, modularity)
    rows = [
        (count, 1.0 + 0.5 * (count <= 4), 1 - abs(count - 17) / 20) for count in range(40, 1, -1)
    ]
    found = [Merge(0, 1, share / count, 1.0, quality) for count, share, quality in rows]
    assert natural_count(found) == 17  # 4 is clear, but far below the best modularity
    near = [merge._replace(modularity=merge.modularity / 1000 + 0.5) for merge in found]
    assert natural_count(near) == 4


@pytest.mark.slow
@pytest.mark.parametrize("merge", [True, "information"])
def test_auto_finds_ten_digits(merge: Any) -> None:
    x, y = load_digits(return_X_y=True)
    fitted = NeuralClustering("auto", merge=merge, random_state=0).fit(x)
    assert 8 <= fitted.n_clusters_ <= 12
    assert adjusted_rand_score(y, fitted.labels_) > 0.7


def test_auto_counts_clusters_that_are_apart(tmp_path: Path) -> None:
    centers = 9 * np.eye(5, 6)
    x, y = make_blobs(500, centers=centers, cluster_std=1.0, random_state=0)
    fitted = small("auto", max_iter=150).fit(x)
    assert fitted.n_clusters_ == 5
    assert fitted.transform(x).shape == (500, 5)
    assert adjusted_rand_score(y, fitted.labels_) > 0.95
    fitted.save(tmp_path / "m")
    again = NeuralClustering.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict_proba(x), fitted.predict_proba(x))
    assert (again.n_clusters, again.n_clusters_) == ("auto", 5)
    again.partial_fit(x)
    assert clone(again).n_clusters == "auto"
    with pytest.raises(ValueError, match="'merge' parameter"):
        small("auto", merge=False).fit(x)


def test_surplus_clusters_merge_by_information_on_request(tmp_path: Path) -> None:
    x, y = make_blobs(300, centers=9 * np.eye(3, 6), cluster_std=1.0, random_state=0)
    fitted = small(merge="information", max_iter=100).fit(x)
    assert adjusted_rand_score(y, fitted.labels_) > 0.95
    fitted.save(tmp_path / "m")
    assert NeuralClustering.load(tmp_path / "m").merge == "information"
    for steps in (1, 2, 3):
        few = small(merge="information", max_iter=steps).fit(x)
        assert few.n_clusters_ == len(np.unique(few.labels_)) == 3
        assert np.isfinite(few.cluster_centers_).all()
    parts = small(merge="information")
    for part in np.array_split(np.random.default_rng(0).permutation(x), 3):
        parts.partial_fit(part)
    assert parts.predict(x).max() == 2
    with pytest.raises(ValueError, match="'merge' parameter of NeuralClustering must be True"):
        small(merge="chance").fit(x)
