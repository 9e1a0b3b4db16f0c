"""Pictures of a run as PNG; matplotlib, an extra, is imported when the first one is drawn."""

from clusterformer.pictures.attention import attention_map
from clusterformer.pictures.clusters import centroid_images, cluster_sizes, point_maps
from clusterformer.pictures.curves import Run, accuracy_curve, learning_curves
from clusterformer.pictures.tokens import token_clusters

__all__ = [
    "Run",
    "accuracy_curve",
    "attention_map",
    "centroid_images",
    "cluster_sizes",
    "learning_curves",
    "point_maps",
    "token_clusters",
]
