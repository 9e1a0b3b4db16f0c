"""Transformer encoder over any attention mechanism.

B batch   N tokens   E model width   F inner width of the feed-forward part
"""

from collections.abc import Sequence
from itertools import compress, pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from clusterformer.attention import Attended, AttentionCore, Grouping, MultiHeadAttention
from clusterformer.models.dropout import Dropout

Norm = Literal["pre", "post"]


class Encoded(NamedTuple):
    """Attributes: hidden (B, N, E); groupings, one a layer (None where nothing is grouped)."""

    hidden: Tensor
    groupings: list[Grouping | None]


class Output(NamedTuple):
    """What a task's network returns.

    Attributes:
        logits: Of labels or tokens.
        encoded: By the encoder, or by a decoder that stands alone.
        decoded: By the decoder of a pair.
    """

    logits: Tensor
    encoded: Encoded
    decoded: Encoded | None = None


class FeedForward(nn.Sequential):
    """Two linear maps around a ReLU, with dropout inside."""

    def __init__(self, d_model: int, d_ff: int, dropout: float) -> None:
        super().__init__(
            nn.Linear(d_model, d_ff), nn.ReLU(), Dropout(dropout), nn.Linear(d_ff, d_model)
        )


class EncoderLayer(nn.Module):
    """Attention and feed-forward part, each with a residual connection.

    Args:
        core: Attention mechanism; gives E.
        d_ff: F.
        dropout: Share of entries dropped inside the feed-forward part and before each residual.
        norm: "pre": x + f(norm(x)), trains without warm-up; "post": norm(x + f(x)), the paper's.
        recompute: Keep nothing from within the attention, and compute it again in the backward
            pass: less memory for the time of one more forward pass of the attention.
        rotary_base: Of rotary positions; None for none.
    """

    def __init__(
        self,
        core: AttentionCore,
        d_ff: int,
        dropout: float,
        norm: Norm,
        recompute: bool,
        rotary_base: float | None = None,
    ) -> None:
        super().__init__()
        self.recompute = recompute
        self.pre = norm == "pre"
        self.attention = MultiHeadAttention(core, rotary_base=rotary_base)
        self.feed_forward = FeedForward(core.d_model, d_ff, dropout)
        self.attention_norm = nn.LayerNorm(core.d_model)
        self.feed_forward_norm = nn.LayerNorm(core.d_model)
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Tensor, key_mask: Tensor | None = None, previous: Grouping | None = None
    ) -> tuple[Tensor, Grouping | None]:
        values, grouping = self._attend(self._enter(self.attention_norm, x), key_mask, previous)
        return self._feed(self._leave(self.attention_norm, x, values)), grouping

    def _feed(self, x: Tensor) -> Tensor:
        values = self.feed_forward(self._enter(self.feed_forward_norm, x))
        return self._leave(self.feed_forward_norm, x, values)

    def _enter(self, norm: nn.Module, x: Tensor) -> Tensor:
        """What a part of the layer reads."""
        return norm(x) if self.pre else x

    def _leave(self, norm: nn.Module, x: Tensor, values: Tensor) -> Tensor:
        """The residual connection around a part that gave `values`."""
        x = x + self.dropout(values)
        return x if self.pre else norm(x)

    def _attend(self, x: Tensor, key_mask: Tensor | None, previous: Grouping | None) -> Attended:
        if not (self.recompute and torch.is_grad_enabled()):
            return self.attention(x, key_mask, previous=previous)
        return checkpoint(
            self.attention,
            x,
            key_mask,
            previous=previous,
            use_reentrant=False,
            preserve_rng_state=False,  # no mechanism draws numbers in its forward pass
        )


def let_inherit(cores: Sequence[AttentionCore]) -> list[bool]:
    """Prepare a stack: which layers take the grouping of the layer below, of the same mechanism."""
    inherits = [False, *(type(below) is type(core) for below, core in pairwise(cores))]
    for core in compress(cores, inherits):
        core.inherit()
    return inherits


class Encoder(nn.Module):
    """A stack of layers; what a layer grouped goes up to the next of the same mechanism.

    Args:
        cores: One attention mechanism a layer.
        d_ff: F.
        dropout: As in `EncoderLayer`.
        norm: "pre" or "post".
        recompute: As in `EncoderLayer`.
        rotary_base: As in `EncoderLayer`.
    """

    def __init__(
        self,
        cores: list[AttentionCore],
        *,
        d_ff: int,
        dropout: float = 0.1,
        norm: Norm = "pre",
        recompute: bool = False,
        rotary_base: float | None = None,
    ) -> None:
        super().__init__()
        if norm not in ("pre", "post"):
            raise ValueError(f'norm must be "pre" or "post", got {norm!r}')
        self._inherits = let_inherit(cores)
        self.layers = nn.ModuleList(
            EncoderLayer(core, d_ff, dropout, norm, recompute, rotary_base) for core in cores
        )
        self.norm = nn.LayerNorm(cores[0].d_model) if norm == "pre" else nn.Identity()

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Encoded:
        """Embedded tokens (B, N, E), mask (B, N), True at real tokens."""
        groupings: list[Grouping | None] = []
        for layer, inherits in zip(self.layers, self._inherits, strict=True):
            x, grouping = layer(x, key_mask, groupings[-1] if inherits else None)
            groupings.append(grouping)
        return Encoded(self.norm(x), groupings)
