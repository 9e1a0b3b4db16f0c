"""UMAP and HDBSCAN as a method of the task Clustering."""

import numpy as np
import pytest

pytest.importorskip("umap")

from clusterformer.training.umap_hdbscan import UmapHdbscan


@pytest.mark.slow
def test_points_of_long_clusters_have_the_cluster_they_were_given() -> None:
    line = np.linspace([-3.0, 0.0, 10.0], [3.0, 0.0, 10.0], 500)
    blob = np.tile([3.6, 0.0, 10.0], (60, 1))
    points = np.concatenate([line, blob])
    points += np.random.default_rng(0).normal(scale=0.03, size=points.shape)
    found = UmapHdbscan(2, seed=0).fit(points)
    assert found.labels_.max() == 1
    np.testing.assert_array_equal(found.predict(points), found.labels_)
