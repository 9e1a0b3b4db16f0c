"""Clustering by the paper's equations alone, and as methods of the task."""

import numpy as np
import pytest

from clusterformer.tasks.clustering import Clustering
from clusterformer.training import paper_clustering
from clusterformer.training.clustering_methods import METHODS
from clusterformer.training.paper_clustering import PaperClustering


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper_clustering, "_STEPS", 40)


def blobs(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centers = 8 * np.eye(4, 6)
    return (centers[rng.integers(0, 4, 200)] + rng.normal(size=(200, 6))).astype(np.float32)


def test_bounded_losses_separate_what_is_far_apart_and_repeatably() -> None:
    points = blobs(0)
    first, again = (PaperClustering(4, 0, form="bounded").fit(points) for _ in range(2))
    assert np.array_equal(first.labels_, again.labels_)
    assert np.array_equal(first.predict(points), first.labels_)
    truth = points[:, :4].argmax(1)
    named = [np.bincount(truth[first.labels_ == cluster]).max(initial=0) for cluster in range(4)]
    assert sum(named) / len(points) > 0.6
    assert first.cluster_centers_.shape == (4, 6)
    assert PaperClustering(3, 0).fit(points).predict(blobs(1)).max() < 3


def test_a_task_offers_the_methods_of_the_command() -> None:
    task = Clustering("digits", n_clusters=10)
    assert task.baselines(cheap=True) == {}
    methods = task.baselines()
    assert list(methods) == list(METHODS)
    found = methods["kmeans"]()
    assert 0.6 < found.measures["accuracy"] < 0.95
    assert found.parameters == 10 * 64
    assert methods["paper-bounded"]().measures["accuracy"] > 0.1


def test_all_kinds_of_many_points_are_centred() -> None:
    kinds = np.repeat([0.0, 0.0, 0.0, 9.0], 5_000)  # more than a chunk, sorted
    points = (kinds[:, None] + np.random.default_rng(0).standard_normal((20_000, 2))).astype("f4")
    scaled = PaperClustering(2, 0).fit(points)._scaled(points)
    assert scaled.mean(0).abs().max() < 0.02
    assert abs(scaled.std() - 1) < 0.02
