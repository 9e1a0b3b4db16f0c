"""The shape of a network, apart from what it reads and says."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from clusterformer.attention import AttentionCore, FullAttention
from clusterformer.models.decoder import Decoder
from clusterformer.models.embeddings import Positions
from clusterformer.models.pooling import Pooling
from clusterformer.models.transformer import Encoder, Norm

Attention = Callable[..., AttentionCore]
"""(d_model, num_heads, *, causal=False) -> AttentionCore; an encoder gives no `causal`."""


@dataclass(frozen=True)
class Architecture:
    """What a task needs to build its network.

    Attributes:
        attention: Makes a mechanism from (d_model, num_heads), and with causal=True its causal
            form; called once a layer.
        d_model: Width of the hidden states.
        num_heads: Attention heads.
        num_layers: Layers.
        d_ff: Inner width of the feed-forward parts.
        dropout: Share dropped after embeddings, inside feed-forward parts, before residuals.
        norm: "pre" or "post".
        positions: "sinusoidal", "learned", "rotary" or "none".
        rotary_base: Longest wavelength of rotary positions over 2 pi, tokens.
        pooling: "mean", "max" or "first", where a text becomes one vector.
        recompute: Compute the attention again in the backward pass, to save memory.
        decoder_attention: Likewise, for a decoder; None: as `attention`.
        cross_attention: Likewise, for what a decoder reads of the encoder; None: FullAttention.
        outer_attention: Likewise, for all layers of a stack but the central one; None: no
            exception.
    """

    attention: Attention
    d_model: int = 128
    num_heads: int = 4
    num_layers: int = 2
    d_ff: int = 512
    dropout: float = 0.1
    norm: Norm = "pre"
    positions: Positions = "sinusoidal"
    rotary_base: float = 10_000.0
    pooling: Pooling = "mean"
    recompute: bool = False
    decoder_attention: Attention | None = None
    cross_attention: Attention | None = None
    outer_attention: Attention | None = None

    def encoder(self) -> Encoder:
        """An encoder of this shape, newly initialised."""
        return Encoder(
            [self._core(make) for make in self._stack(self.attention)],
            d_ff=self.d_ff,
            dropout=self.dropout,
            norm=self.norm,
            recompute=self.recompute,
            rotary_base=self._rotary_base,
        )

    def decoder(self, cross: bool = False) -> Decoder:
        """A decoder of this shape, newly initialised; with `cross` it reads a memory.

        Raises:
            ValueError: if a mechanism has no causal form, or cannot read a memory.
        """
        crosses = None
        if cross:
            reader = self.cross_attention or FullAttention
            crosses = [self._core(reader) for _ in range(self.num_layers)]
        return Decoder(
            [self._causal(make) for make in self._stack(self.decoder_attention or self.attention)],
            crosses,
            d_ff=self.d_ff,
            dropout=self.dropout,
            norm=self.norm,
            recompute=self.recompute,
            rotary_base=self._rotary_base,
        )

    def _stack(self, inner: Attention) -> list[Attention]:
        """What makes the mechanism of each layer."""
        layers = [self.outer_attention or inner] * self.num_layers
        layers[self.num_layers // 2] = inner
        return layers

    @property
    def _rotary_base(self) -> float | None:
        return self.rotary_base if self.positions == "rotary" else None

    def _core(self, make: Attention, **options: Any) -> AttentionCore:
        """A mechanism whose own weights do not shift the drawing of all others.

        So at one seed every mechanism starts from the same embeddings, projections and head.
        """
        seed = int(torch.randint(2**62, (), device="cpu"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return make(self.d_model, self.num_heads, **options)

    def _causal(self, make: Attention) -> AttentionCore:
        chosen = make.keywords.get("causal") if isinstance(make, partial) else None
        try:
            return self._core(make, causal=chosen or True)
        except ValueError as error:
            raise ValueError(
                f"decoder: {error}; choose another by model.decoder_attention"
            ) from error
