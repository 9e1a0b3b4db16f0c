"""Clustering: a scikit-learn estimator, statistics of groupings, and parts of mechanisms."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterformer.clustering.estimator import NeuralClustering

__all__ = ["NeuralClustering"]


def __getattr__(name: str) -> Any:
    # late: the estimator needs scikit-learn, an extra
    if name == "NeuralClustering":
        from clusterformer.clustering.estimator import NeuralClustering

        return NeuralClustering
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
