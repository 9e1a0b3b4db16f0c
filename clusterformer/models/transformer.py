"""Transformer encoder over any attention mechanism.

B batch   N tokens   E model width
"""

from collections.abc import Sequence
from itertools import compress, pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from clusterformer.attention import Attended, AttentionCore, Grouping, MultiHeadAttention
from clusterformer.models.config import TransformerConfig
from clusterformer.models.dropout import Dropout


class StackOutput(NamedTuple):
    """Output of a stack of layers.

    Attributes:
        hidden: (B, N, E).
        groupings: One a layer; None where nothing is grouped.
        cores: Mechanism of self-attention of each layer, which says what its tokens saw.
    """

    hidden: Tensor
    groupings: list[Grouping | None]
    cores: Sequence[AttentionCore] = ()


class Output(NamedTuple):
    """Output of a task's network.

    Attributes:
        logits: Scores of labels or tokens.
        encoded: Output of the encoder, or of the only stack.
        decoded: Output of the decoder, where there are both.
        row_logits: Scores of labels of whole rows, beside those of tokens.
    """

    logits: Tensor
    encoded: StackOutput
    decoded: StackOutput | None = None
    row_logits: Tensor | None = None


class FeedForward(nn.Sequential):
    """Two linear maps around a ReLU, with dropout inside."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(
            nn.Linear(config.d_model, config.d_ff),
            nn.ReLU(),
            Dropout(config.dropout),
            nn.Linear(config.d_ff, config.d_model),
        )


class EncoderLayer(nn.Module):
    """Attention and feed-forward part, each with a residual connection.

    Args:
        config: Shape of the layer.
        core: Attention mechanism.
    """

    def __init__(self, config: TransformerConfig, core: AttentionCore) -> None:
        super().__init__()
        self.recompute = config.recompute
        self.pre_norm = config.norm == "pre"
        rotary_base = config.rotary_base if config.positions == "rotary" else None
        self.attention = MultiHeadAttention(
            core, rotary_base, config.short_convolution, config.query_scale
        )
        self.feed_forward = FeedForward(config)
        self.attention_norm = nn.LayerNorm(config.d_model)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Tensor, key_mask: Tensor | None = None, previous: Grouping | None = None
    ) -> tuple[Tensor, Grouping | None]:
        """Hidden states (B, N, E) -> (B, N, E), and what the mechanism grouped."""
        values, grouping = self._attend(self._input(x, self.attention_norm), key_mask, previous)
        return self._feed_forward(self._add(x, values, self.attention_norm)), grouping

    def _attend(self, x: Tensor, key_mask: Tensor | None, previous: Grouping | None) -> Attended:
        if not (self.recompute and torch.is_grad_enabled()):
            return self.attention(x, key_mask, previous=previous)
        return checkpoint(self.attention, x, key_mask, previous=previous, use_reentrant=False)

    def _feed_forward(self, x: Tensor) -> Tensor:
        values = self.feed_forward(self._input(x, self.feed_forward_norm))
        return self._add(x, values, self.feed_forward_norm)

    def _input(self, x: Tensor, norm: nn.Module) -> Tensor:
        """Input of a part of the layer."""
        return norm(x) if self.pre_norm else x

    def _add(self, x: Tensor, values: Tensor, norm: nn.Module) -> Tensor:
        """Add the values of a part to what it read: the residual connection."""
        x = x + self.dropout(values)
        return x if self.pre_norm else norm(x)


class Encoder(nn.Module):
    """A stack of layers; the grouping of a layer goes up to the next, if its mechanism is alike.

    Args:
        config: Shape of the stack.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        # all mechanisms first: the order in which random numbers are drawn is part of a seed
        cores = [config.make_encoder_core(index) for index in range(config.num_layers)]
        self._inherits = inherit_groupings(cores)
        self.layers = nn.ModuleList(EncoderLayer(config, core) for core in cores)
        self.norm = final_norm(config)

    def forward(
        self, x: Tensor, key_mask: Tensor | None = None, states: list[Tensor] | None = None
    ) -> StackOutput:
        """Encode embedded tokens.

        Args:
            x: (B, N, E).
            key_mask: (B, N), True at real tokens; None means all real.
            states: List that gets the hidden states that each layer reads, and those behind all,
                (B, N, E) each.
        """
        groupings: list[Grouping | None] = []
        for layer, inherits in zip(self.layers, self._inherits, strict=True):
            if states is not None:
                states.append(x)
            x, grouping = layer(x, key_mask, groupings[-1] if inherits else None)
            groupings.append(grouping)
        x = self.norm(x)
        if states is not None:
            states.append(x)
        return StackOutput(x, groupings, self_attention(self))


def self_attention(network: nn.Module) -> list[AttentionCore]:
    """List the mechanisms by which the layers inside `network` attend to their own tokens."""
    layers = (part for part in network.modules() if isinstance(part, EncoderLayer))
    return [layer.attention.core for layer in layers]


def inherit_groupings(cores: Sequence[AttentionCore]) -> list[bool]:
    """Let each mechanism take the grouping of the layer below, if it can.

    Returns:
        For each layer, True if it does.
    """
    inherits = [False, *(core.can_inherit(below) for below, core in pairwise(cores))]
    for core in compress(cores, inherits):
        core.inherit()
    return inherits


def final_norm(config: TransformerConfig) -> nn.Module:
    """Norm behind the last layer: with "post" that layer has one already."""
    return nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()
