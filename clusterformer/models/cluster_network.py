"""The network that assigns points to clusters.

B batch   F features   K neighbours   C clusters
"""

from __future__ import annotations

import torch
from torch import nn

from clusterformer.clustering.network import NeuralClusters
from clusterformer.models.inputs import PointInput
from clusterformer.models.transformer import Output, StackOutput


class ClusterNetwork(nn.Module):
    """Memberships of points and of one neighbour each: a random one in training, else the nearest.

    Args:
        clusters: Clusters to be learnt.
    """

    def __init__(self, clusters: NeuralClusters) -> None:
        super().__init__()
        self.clusters = clusters

    def forward(self, batch: PointInput) -> Output:
        """Logits (B, 2, C) of the points and of their partners."""
        drawn = torch.zeros(len(batch.neighbors), dtype=torch.long, device=batch.neighbors.device)
        if self.training:
            drawn = torch.randint_like(drawn, batch.neighbors.shape[1])
        partner = batch.neighbors[torch.arange(len(drawn), device=drawn.device), drawn]
        both = torch.stack([batch.points, partner], 1)  # (B, 2, F)
        logits = self.clusters(both.to(self.clusters.centroids.dtype))
        if self.training:
            real = batch.mask[:, 0]
            self.clusters.watch(batch.points[real], *logits.detach()[real].unbind(1))
        return Output(logits, StackOutput(both, []))
