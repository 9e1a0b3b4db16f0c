"""What follows from sums over points: pairs of neighbours, the hierarchy, centers that go on."""

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from sklearn.datasets import make_blobs

from clusterformer.clustering import NeuralClustering
from clusterformer.clustering.evaluation import count_pairs
from clusterformer.clustering.network import NeuralClusters


@pytest.mark.parametrize("weighted", [False, True])
def test_pairs_of_neighbours_are_counted_in_both_orders(weighted: bool) -> None:
    network, features, near = NeuralClusters(4, 3), torch.randn(30, 4), torch.randint(30, (30, 2))
    weights = torch.rand(30) if weighted else None
    cluster = network(features).argmax(1).tolist()
    expected = np.zeros((3, 3))
    for point, neighbors in enumerate(near.tolist()):
        for neighbor in neighbors:
            half = 0.5 * (1.0 if weights is None else weights[point].item())
            expected[cluster[point], cluster[neighbor]] += half
            expected[cluster[neighbor], cluster[point]] += half
    np.testing.assert_allclose(count_pairs(network, features, near, weights), expected, rtol=1e-6)


def test_the_hierarchy_loses_the_information_of_clusters_merge_by_merge() -> None:
    x, _ = make_blobs(200, centers=6, cluster_std=2.0, random_state=0)
    fitted = NeuralClustering(6, max_iter=60, random_state=0).fit(x)
    linkage, joint = fitted.linkage_, fitted._totals.joint
    joint = joint / joint.sum()
    chance = np.outer(joint.sum(0), joint.sum(1))
    information = (joint * np.log(np.where(joint > 0, joint / chance, 1.0))).sum()
    assert linkage[-1, 2] == pytest.approx(information)
    assert (np.diff(linkage[:, 2]) >= 0).all()
    sizes = [1] * 6
    for one, other, _, size in linkage:
        assert size == sizes[int(one)] + sizes[int(other)]
        sizes.append(int(size))


def test_centers_remember_earlier_points_by_half() -> None:
    parts = np.array_split(make_blobs(300, centers=3, cluster_std=1.0, random_state=0)[0], 2)
    fitted, mass, sums = NeuralClustering(3, max_iter=60, random_state=0), 0.0, 0.0
    for part in parts:
        p = fitted.partial_fit(part).predict_proba(part)
        mass, sums = 0.5 * mass + p.sum(0), 0.5 * sums + p.T @ part
        np.testing.assert_allclose(fitted.cluster_centers_, sums / mass[:, None], rtol=1e-6)
