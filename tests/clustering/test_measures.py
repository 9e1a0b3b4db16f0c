"""Measures of clusters by labels, counted by hand."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from clusterformer.clustering.measures import measures


def test_training_names_the_clusters_for_the_accuracy_and_the_test_for_the_others() -> None:
    """Cluster 0 is a by training and b by the test; cluster 2 has no name by training."""
    train, train_labels = np.array([0, 0, 0, 1, 1]), np.array(list("aabbb"))
    test, labels = np.array([0, 0, 0, 1, 2, 2]), np.array(list("abbbaa"))
    found = measures(train, train_labels, test, labels, np.eye(6))
    assert found["accuracy"] == pytest.approx(2 / 6)
    assert found["purity"] == pytest.approx(5 / 6)
    assert found["hungarian"] == pytest.approx(4 / 6)  # 0 is b, 2 is a, and 1 is nothing
    assert found["nmi"] == normalized_mutual_info_score(labels, test)
    assert found["ari"] == adjusted_rand_score(labels, test)
    assert set(measures(train, None, test, labels, np.eye(6))) == {"silhouette"}


def test_measures_of_a_perfect_and_a_useless_clustering() -> None:
    y = np.array(["a", "b", "c"] * 20)
    clusters = np.array([2, 0, 1] * 20)
    x = np.eye(3)[clusters] + 0.01 * np.random.default_rng(0).standard_normal((60, 3))
    perfect = measures(clusters, y, clusters, y, x)
    assert all(value > 0.95 for value in perfect.values())
    useless = measures(np.zeros(60, int), y, np.zeros(60, int), y, x)
    assert useless["accuracy"] == useless["hungarian"] == pytest.approx(1 / 3)
    assert useless["ari"] == 0
    assert "silhouette" not in useless
