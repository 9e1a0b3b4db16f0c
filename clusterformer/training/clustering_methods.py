"""Clustering methods to compare, all with fit, predict and centers.

C clusters   N points   F features
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from clusterformer.errors import InputError, missing

METHODS = {
    "neural": "NeuralClustering, W linear as in eq. 2",
    "neural-hidden": "NeuralClustering, with a hidden layer",
    "neural-augmented": "neural-hidden, with rotated and shifted copies of images",
    "paper": "eq. 2-6 and 11 alone, inner product: losses without a lower bound",
    "paper-bounded": "the same with both losses bounded, by the cosine",
    "kmeans": "scikit-learn's KMeans, n_init=1",
    "kmeans-10": "the same, the best of 10 starts",
    "minibatch-kmeans": "scikit-learn's MiniBatchKMeans, n_init=1",
    "umap-hdbscan": "UMAP in 5 dimensions, then HDBSCAN; needs the extra umap",
    "som": "a self-organising map of MiniSom, trained in two phases",
}

COUNTING = ("neural", "neural-hidden", "neural-augmented", "umap-hdbscan")
"""Methods that also find the number of clusters, "auto"."""


def make_clustering(
    method: str,
    num_clusters: int | Literal["auto"],
    seed: int,
    *,
    hidden: int,
    image: tuple[int, int] | None = None,
    **neural: Any,
) -> Any:
    """Make a clustering that is not fitted yet.

    Args:
        method: One of METHODS.
        num_clusters: C; at least 1, or "auto" for those of COUNTING.
        seed: Seed of its random numbers.
        hidden: Units of the hidden layer of neural-hidden and neural-augmented.
        image: Height and width of the points if they are pictures, else None.
        neural: Further options of NeuralClustering, for the neural methods.

    Raises:
        InputError: if scikit-learn is missing, or the method needs pictures or a number of
            clusters and there are none.
    """
    try:
        from sklearn.cluster import KMeans, MiniBatchKMeans

        from clusterformer.clustering import NeuralClustering
        from clusterformer.clustering.images import RandomAffine
        from clusterformer.training.paper_clustering import PaperClustering
        from clusterformer.training.umap_hdbscan import UmapHdbscan
    except ImportError:
        raise missing(f"{method} needs scikit-learn", "cluster") from None
    if method == "neural":
        return NeuralClustering(num_clusters, random_state=seed, **neural)
    if method == "neural-augmented":
        if image is None:
            raise InputError("neural-augmented needs pictures (mnist, digits), got points")
        neural["augment"] = RandomAffine(*image)
    if method.startswith("neural"):
        return NeuralClustering(num_clusters, hidden=hidden, random_state=seed, **neural)
    if method == "umap-hdbscan":
        return UmapHdbscan(num_clusters, seed)
    if isinstance(num_clusters, str):
        raise InputError(f"{method} needs a number of clusters; auto is for {', '.join(COUNTING)}")
    if method == "minibatch-kmeans":
        return MiniBatchKMeans(num_clusters, n_init=1, random_state=seed)
    if method == "som":
        if find_spec("minisom") is None:
            raise missing("som needs minisom", "cluster")
        return SelfOrganisingMap(num_clusters, seed)
    if method == "paper":
        return PaperClustering(num_clusters, seed)
    if method == "paper-bounded":
        return PaperClustering(num_clusters, seed, form="bounded")
    return KMeans(num_clusters, n_init=10 if method == "kmeans-10" else 1, random_state=seed)


class SelfOrganisingMap:
    """MiniSom on the squarest grid that has exactly C nodes, each node a cluster.

    Args:
        num_clusters: C.
        seed: Seed of the initial weights and of the order of the points.

    Attributes:
        cluster_centers_: Weights of the nodes, (C, F).
        labels_: Cluster of each training point, (N,).
    """

    def __init__(self, num_clusters: int, seed: int) -> None:
        sides = range(1, int(num_clusters**0.5) + 1)
        self._rows = max(side for side in sides if num_clusters % side == 0)
        self._columns = num_clusters // self._rows
        self._seed = seed

    def fit(self, points: NDArray) -> SelfOrganisingMap:
        """Train on points (N, F) in random order, in Kohonen's two phases.

        The first phase takes half of the points, with a radius that falls from half the map to one
        node. The second takes all; each point moves little but its own node. With the first phase
        only, nodes stay bound to each other: 55 instead of 81 % accuracy on MNIST with 50 nodes.
        """
        from minisom import MiniSom

        size = self._rows, self._columns, points.shape[1]
        order = MiniSom(
            *size,
            sigma=max(1.0, *(side / 2 for side in size[:2])),
            learning_rate=0.5,
            sigma_decay_function="linear_decay_to_one",
            decay_function="linear_decay_to_zero",
            random_seed=self._seed,
        )
        order.random_weights_init(points)
        order.train(points, len(points) // 2, random_order=True)
        som = MiniSom(
            *size,
            sigma=0.6,
            learning_rate=0.1,
            decay_function="linear_decay_to_zero",
            random_seed=self._seed,
        )
        som.get_weights()[:] = order.get_weights()
        som.train(points, len(points), random_order=True)
        self.cluster_centers_ = som.get_weights().reshape(-1, points.shape[1])
        self.labels_ = self.predict(points)
        return self

    def predict(self, points: NDArray) -> NDArray[np.int64]:
        """Find the nearest node of each point (N, F), (N,)."""
        from sklearn.metrics import pairwise_distances_argmin

        return pairwise_distances_argmin(
            points, self.cluster_centers_.astype(np.result_type(points, np.float32))
        )
