"""Pictures of a run as PNG; matplotlib, an extra, is imported when the first one is drawn."""

from clusterformer.pictures.curves import Run, accuracy_curve, learning_curves
from clusterformer.pictures.tokens import token_clusters

__all__ = ["Run", "accuracy_curve", "learning_curves", "token_clusters"]
