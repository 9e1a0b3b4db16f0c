"""The configuration that every layer of a network reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch

from clusterformer.attention import AttentionCore, FullAttention
from clusterformer.errors import (
    InputError,
    require_at_least,
    require_memory,
    require_positive,
    require_share,
)
from clusterformer.models.pooling import Pooling

MakeCore = Callable[..., AttentionCore]
"""(d_model, num_heads, *, causal=False) -> AttentionCore; an encoder does not pass `causal`."""

Norm = Literal["pre", "post"]
"""pre: x + f(norm(x)), trains without warm-up. post: norm(x + f(x)), the paper's."""

Positions = Literal["sinusoidal", "learned", "rotary", "none"]
"""Sinusoidal and learned positions are added to embeddings; rotary ones turn queries and keys."""


@dataclass(frozen=True)
class TransformerConfig:
    """Shape of a Transformer; one object for all its layers.

    Attributes:
        attention: Function that makes the mechanism of a layer from (d_model, num_heads), and with
            causal=True its causal form.
        d_model: Width of the hidden states.
        num_heads: Attention heads.
        num_layers: Layers of a stack.
        d_ff: Inner width of the feed-forward parts.
        dropout: Share of values dropped after embeddings, inside feed-forward parts and before
            residual connections.
        norm: "pre" or "post".
        positions: "sinusoidal", "learned", "rotary" or "none".
        rotary_base: Longest wavelength of rotary positions over 2 pi, tokens.
        short_convolution: Number of tokens, the token itself and those before it, that a
            convolution mixes before each self-attention; 0 for none.
        query_scale: Factor on the queries of self-attention, for texts longer than in training
            (`MultiHeadAttention`).
        pooling: "mean", "max" or "first": how a text becomes one vector.
        recompute: Compute self-attention again in the backward pass instead of keeping what is
            inside it: less memory for the time of one more forward pass.
        decoder_attention: Function that makes the mechanism of a decoder's layers; None:
            `attention`.
        cross_attention: Function that makes the mechanism that reads a memory; None:
            FullAttention.
        outer_attention: Function that makes the mechanism of all layers of a stack but the central
            one; None: no exception.
        pretrained: Name or folder of a pretrained model of transformers, which then decides on all
            widths, layers and positions; None: random weights.
        freeze: Whether the pretrained weights stay as they are.
        calibration_texts: Number of training texts to which the clusters of a pretrained model are
            fitted before its training.
        init_from: Run whose weights the network starts from; None: random weights.

    Raises:
        InputError: for a number out of range, an unknown norm, kind of positions or pooling, or two
            models to start from.
    """

    attention: MakeCore
    d_model: int = 128
    num_heads: int = 4
    num_layers: int = 2
    d_ff: int = 512
    dropout: float = 0.1
    norm: Norm = "pre"
    positions: Positions = "sinusoidal"
    rotary_base: float = 10_000.0
    short_convolution: int = 0
    query_scale: float = 1.0
    pooling: Pooling = "mean"
    recompute: bool = False
    decoder_attention: MakeCore | None = None
    cross_attention: MakeCore | None = None
    outer_attention: MakeCore | None = None
    pretrained: str | None = None
    freeze: bool = False
    calibration_texts: int = 300
    init_from: str | None = None

    def __post_init__(self) -> None:
        require_at_least(
            1,
            d_model=self.d_model,
            num_heads=self.num_heads,
            num_layers=self.num_layers,
            d_ff=self.d_ff,
            rotary_base=self.rotary_base,
        )
        require_at_least(
            0, calibration_texts=self.calibration_texts, short_convolution=self.short_convolution
        )
        require_positive(query_scale=self.query_scale)
        require_share(dropout=self.dropout)
        for name in ("attention", "decoder_attention", "cross_attention", "outer_attention"):
            found = getattr(self, name)
            if found is not None and not callable(found):
                raise InputError(
                    f"{name} must be the class of a mechanism, or a function "
                    f"(d_model, num_heads) -> AttentionCore, got {found!r}"
                )
        if self.pretrained is not None and self.init_from is not None:
            raise InputError(
                f"give either pretrained or init_from, got {self.pretrained!r} and "
                f"{self.init_from!r}"
            )
        weights = 4 * self.d_model * (2 * self.d_model + self.d_ff)  # a lower bound, as float16
        objects = 2**15  # those of Python for a layer
        require_memory(
            self.num_layers * (weights + objects),
            f"a model of num_layers {self.num_layers}, d_model {self.d_model}, d_ff {self.d_ff}",
        )
        for name, kinds in (("norm", Norm), ("positions", Positions), ("pooling", Pooling)):
            found = getattr(self, name)
            if found not in get_args(kinds):
                raise InputError(f"{name} must be one of {get_args(kinds)}, got {found!r}")

    def make_encoder_core(self, index: int) -> AttentionCore:
        """Make the self-attention of layer `index` of an encoder."""
        return self._make(self._of_layer(index, self.attention))

    def make_decoder_core(self, index: int) -> AttentionCore:
        """Make the causal self-attention of layer `index` of a decoder.

        Raises:
            ValueError: if the mechanism has no causal form.
        """
        make = self._of_layer(index, self.decoder_attention or self.attention)
        chosen = make.keywords.get("causal") if isinstance(make, partial) else None
        try:
            return self._make(make, causal=chosen or True)
        except ValueError as error:
            raise ValueError(
                f"decoder: {error}; choose another by model.attention or model.decoder_attention"
            ) from error

    def make_cross_core(self) -> AttentionCore:
        """Make the cross-attention of a decoder's layer."""
        return self._make(self.cross_attention or FullAttention)

    def _of_layer(self, index: int, central: MakeCore) -> MakeCore:
        return central if index == self.num_layers // 2 else self.outer_attention or central

    def _make(self, make: MakeCore, **options: Any) -> AttentionCore:
        """Make a mechanism with random numbers of its own.

        So at one seed every mechanism starts from the same embeddings, projections and head.
        """
        seed = int(torch.randint(2**62, (), device="cpu"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return make(self.d_model, self.num_heads, **options)
