"""Time and memory of clustering methods."""

import numpy as np

from clusterformer.bench.clustering import measure
from clusterformer.data.points import Points


def test_each_seed_has_its_own_peak_memory() -> None:
    x = np.random.default_rng(0).normal(size=(4000, 64)).astype(np.float32)
    (found,) = measure(Points(x, x), ["kmeans"], 10, seeds=range(3))
    assert min(row["peak_mib"] for row in found.rows) > 0.5
