"""Pictures as PNG; matplotlib, an extra, is imported when the first one is drawn."""

from clusterformer.plots.attention import attention_map
from clusterformer.plots.clusters import centroid_images, cluster_size_curves, point_maps
from clusterformer.plots.confusion import confusion_map
from clusterformer.plots.curves import AccuracyCurve, accuracy_curve, learning_curves
from clusterformer.plots.spectrogram import spectrogram_clusters
from clusterformer.plots.tokens import token_clusters

__all__ = [
    "AccuracyCurve",
    "accuracy_curve",
    "attention_map",
    "centroid_images",
    "cluster_size_curves",
    "confusion_map",
    "learning_curves",
    "point_maps",
    "spectrogram_clusters",
    "token_clusters",
]
