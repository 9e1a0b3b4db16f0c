"""Clusters that know nothing of the tokens: a control for what similar tokens in one block do."""

import torch
from torch import Tensor

from clusterformer.attention import NeuralClusteringAttention
from clusterformer.kernels.blocks import Blocks


class ScatteredAttention(NeuralClusteringAttention):
    """Attention to as many tokens as in neural clustering, but tokens of any kind.

    The cluster of a token is drawn from its position, for each layer anew, and stays the same. With
    `coupling` on, z . z still enters the logits.
    """

    def __init__(self, d_model: int, num_heads: int, **options) -> None:
        super().__init__(d_model, num_heads, clusters="random", **options)
        self.register_buffer("drawn", torch.randint(self.num_clusters, (4096,)))

    def blocks_of(self, assignment: Tensor, key_mask: Tensor | None) -> Blocks:
        drawn = self.drawn[: assignment.shape[1]].expand_as(assignment)
        return super().blocks_of(drawn, key_mask)
