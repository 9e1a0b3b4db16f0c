"""Methods of a fitted NeuralClustering: clusters, memberships, distances, hierarchy.

Shapes have scikit-learn's names: n_samples, n_features, n_clusters.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from clusterformer.clustering.arrays import Back, check_finite, check_library, to_numpy
from clusterformer.clustering.evaluation import (
    Evaluator,
    Totals,
    compute_features,
    label,
    pair_loss,
)
from clusterformer.clustering.merging import merges
from clusterformer.clustering.modes import own_modes
from clusterformer.clustering.neighbors import PrincipalComponents, nearest_neighbors
from clusterformer.clustering.network import NeuralClusters
from clusterformer.clustering.onnx_export import Predictor, write_onnx
from clusterformer.clustering.parameters import check_memory, check_parameters, least_clusters
from clusterformer.clustering.weights import check_weights, join_equal_points


class FittedMixin(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin):
    """Methods of NeuralClustering that use what was learnt."""

    n_clusters: Any
    min_probability: float
    device: str
    n_clusters_: int
    cluster_centers_: Any
    _network: NeuralClusters
    _features: PrincipalComponents
    _totals: Totals

    @property
    def network_(self) -> NeuralClusters:
        """The network that was learnt, from features of points to logits of clusters."""
        check_is_fitted(self, "_network")
        return self._network

    @property
    def features_(self) -> PrincipalComponents:
        """The principal components that were learnt, from points to features."""
        check_is_fitted(self, "_network")
        return self._features

    def predict(self, X: Any) -> Any:
        """Return the cluster of each point, (n_samples,): its largest membership (eq. 4).

        Noise is -1. A tensor gives a tensor on its device, here and below.
        """
        if self.min_probability:
            return self._map(
                "predict", X, lambda network, x: label(network(x), self.min_probability)
            )
        return self._evaluate("predict", X, Evaluator.nearest)

    def predict_proba(self, X: Any) -> Any:
        """Return memberships p(cluster | point), (n_samples, n_clusters); rows sum to 1.

        X must be dense: scikit-learn's checks treat an estimator with probabilities for sparse data
        as a classifier. `transform` takes any X.
        """
        if hasattr(X, "toarray"):
            raise TypeError("predict_proba takes no sparse data; use transform, or X.toarray()")
        return self._map("predict_proba", X, lambda network, x: network(x).softmax(1))

    def transform(self, X: Any) -> Any:
        """Return distances to centroids, (n_samples, n_clusters): 1 - cosine."""
        return self._map("transform", X, lambda network, x: 1 - network.similarities(x))

    def score(self, X: Any, y: object = None) -> float:
        """Return the information of a point's cluster about its nearest neighbour in X, in nats.

        It is minus `neighbor_loss`: at most log n_clusters; 0 is no information. As in a fit, equal
        points count as one of their common weight: an equal neighbour says nothing about clusters.
        """
        check_is_fitted(self, "_network")
        X, _, _ = self._receive(X, None, reset=False)
        rows, weights = join_equal_points(X, np.arange(X.shape[0]), None, self.n_clusters_)
        with own_modes():
            features = compute_features(self._features, X, self.n_clusters_, self.device, rows)
            near = nearest_neighbors(features, 1)
            each = None if weights is None else torch.as_tensor(weights).to(features)
            return -pair_loss(self._network.to(self.device), features, near, each)

    @property
    def linkage_(self) -> NDArray[np.float64]:
        """The hierarchy of clusters as a linkage matrix of SciPy, (n_clusters - 1, 4).

        Leaves are clusters. The height of a merge is the information about neighbours lost up to
        it, in nats; the last column counts clusters. `fcluster(linkage_, 3, "maxclust")` is the
        coarser cluster, one of three, of each cluster; index it with labels that are not noise, -1.
        """
        check_is_fitted(self, "_network")
        number = {cluster: cluster for cluster in range(self.n_clusters_)}
        leaves = dict.fromkeys(number, 1)
        rows: list[list[float]] = []
        height = 0.0
        for merge in merges(torch.from_numpy(self._totals.joint)):
            height += merge.loss
            leaves[merge.kept] += leaves[merge.gone]
            pair = sorted((number[merge.kept], number[merge.gone]))
            number[merge.kept] = self.n_clusters_ + len(rows)
            rows.append([*pair, height, leaves[merge.kept]])
        return np.array(rows, dtype=np.float64).reshape(-1, 4)

    def export_onnx(self, path: str | Path) -> None:
        """Write an ONNX model that predicts: `points` in; `cluster` and `probability` out.

        Any number of points, in single precision. Needs clusterformer[onnx].
        """
        check_is_fitted(self, "_network")
        predictor = Predictor(self._features, self._network, self.min_probability)
        write_onnx(predictor, len(self._features.center), path)

    # scikit-learn's interface

    def _receive(
        self, X: Any, sample_weight: Any, *, reset: bool
    ) -> tuple[Any, NDArray[np.float64] | None, Back]:
        """Check points and weights; returns them, and the function for results."""
        check_parameters(self)
        X, back = to_numpy(X)
        types = [np.float64, np.float32, np.float16]
        half = isinstance(X, np.ndarray) and X.dtype == np.float16
        finite = not half  # scikit-learn would copy float16 to look for what is not finite
        X = validate_data(
            self, X, reset=reset, accept_sparse="csr", dtype=types, ensure_all_finite=finite
        )
        if half:
            check_finite(X, type(self).__name__)
        weights = check_weights(to_numpy(sample_weight)[0], X.shape[0])
        if reset:
            least = least_clusters(self)
            if X.shape[0] < least:
                raise ValueError(f"n_samples={X.shape[0]} should be >= n_clusters={least}.")
            if weights is not None and (count := np.count_nonzero(weights)) < least:
                raise ValueError(
                    f"n_samples={count} with a sample_weight above 0 should be >= "
                    f"n_clusters={least}."
                )
            check_memory(self, X.shape[0])
        return X, weights, back

    def _map(
        self, method: str, X: Any, function: Callable[[NeuralClusters, Tensor], Tensor]
    ) -> Any:
        return self._evaluate(method, X, lambda evaluator: evaluator.per_point(function))

    def _evaluate(self, method: str, X: Any, function: Callable[[Evaluator], NDArray]) -> Any:
        check_is_fitted(self, "_network")
        check_library(X, self, method)
        X, _, back = self._receive(X, None, reset=False)
        with own_modes():
            return back(function(Evaluator(self._network, self._features, X, self.device)))

    @property
    def _n_features_out(self) -> int:
        return self._network.num_clusters

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_network")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.array_api_support = True
        return tags
