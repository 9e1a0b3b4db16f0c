"""The shape of a network, apart from what it reads and says."""

from collections.abc import Callable
from dataclasses import dataclass

from clusterformer.attention import AttentionCore
from clusterformer.models.embeddings import Positions
from clusterformer.models.pooling import Pooling
from clusterformer.models.transformer import Encoder, Norm


@dataclass(frozen=True)
class Architecture:
    """What a task needs to build its network.

    Attributes:
        attention: Makes a mechanism from (d_model, num_heads); called once a layer.
        d_model: Width of the hidden states.
        num_heads: Attention heads.
        num_layers: Layers.
        d_ff: Inner width of the feed-forward parts.
        dropout: Share dropped after embeddings, inside feed-forward parts, before residuals.
        norm: "pre" or "post".
        positions: "sinusoidal", "learned" or "none".
        pooling: "mean", "max" or "first", where a text becomes one vector.
        recompute: Compute the attention again in the backward pass, to save memory.
    """

    attention: Callable[[int, int], AttentionCore]
    d_model: int = 128
    num_heads: int = 4
    num_layers: int = 2
    d_ff: int = 512
    dropout: float = 0.1
    norm: Norm = "pre"
    positions: Positions = "sinusoidal"
    pooling: Pooling = "mean"
    recompute: bool = False

    def encoder(self) -> Encoder:
        """An encoder of this shape, newly initialised."""
        cores = [self.attention(self.d_model, self.num_heads) for _ in range(self.num_layers)]
        return Encoder(
            cores,
            d_ff=self.d_ff,
            dropout=self.dropout,
            norm=self.norm,
            recompute=self.recompute,
        )
