"""Networks that give a text, or a pair of texts, one label.

B batch   N tokens   V vocabulary   L labels
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from clusterformer.models.config import TransformerConfig
from clusterformer.models.dropout import Dropout
from clusterformer.models.embeddings import TokenEmbedding
from clusterformer.models.inputs import TextInput, TextPairInput
from clusterformer.models.pooling import pool
from clusterformer.models.transformer import Encoder, Output

if TYPE_CHECKING:
    from clusterformer.sequence_parallel import SequenceGroup


class TextClassifier(nn.Module):
    """Embedding, encoder, pooling over tokens, dropout and a linear map to the labels.

    Args:
        config: Shape of the encoder, and its pooling.
        vocab_size: V.
        num_labels: L.
        max_length: Longest text, for learned positions; None for the embedding's own default.
        pretrained: (V, any width) word vectors to start from.

    Attributes:
        group: Processes of which each has a part of every text; None if this one has all.
    """

    group: SequenceGroup | None = None

    def __init__(
        self,
        config: TransformerConfig,
        *,
        vocab_size: int,
        num_labels: int,
        max_length: int | None = None,
        pretrained: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(
            config, vocab_size, max_length=max_length, pretrained=pretrained
        )
        self.encoder = Encoder(config)
        self.pooling = config.pooling
        self.dropout = Dropout(config.dropout)
        self.head = nn.Linear(config.d_model, num_labels)

    def forward(self, batch: TextInput, states: list[Tensor] | None = None) -> Output:
        """Logits (B, L) of texts (B, N).

        Args:
            batch: The texts.
            states: List that gets the hidden states that each layer reads, and those behind all,
                (B, N, E) each.
        """
        encoded = self.encoder(self.embedding(batch.tokens), batch.mask, states)
        text = pool(encoded.hidden, batch.mask, self.pooling, self.group)
        return Output(self.head(self.dropout(text)), encoded)


class PairClassifier(nn.Module):
    """Encode both texts with one encoder, pool each, compare them, and map that to the labels.

    The texts' vectors u and v are compared as (u, v, |u - v|, u * v) (Mou et al., 2016; Conneau et
    al., 2017), through one hidden layer. Encoded apart, a text's vector does not depend on its
    partner; jointly, tokens of both attend to each other, and segment embeddings tell them apart.

    Args:
        config: Shape of the encoder, and its pooling.
        vocab_size: V, the separator included.
        num_labels: L.
        joint: Whether a row holds both texts of a pair.
        max_length: Longest row, for learned positions; None for the embedding's own default.
        pretrained: (V, any width) word vectors to start from.

    Attributes:
        group: Processes of which each has a part of every row; None if this one has all.
    """

    group: SequenceGroup | None = None

    def __init__(
        self,
        config: TransformerConfig,
        *,
        vocab_size: int,
        num_labels: int,
        joint: bool = False,
        max_length: int | None = None,
        pretrained: Tensor | None = None,
    ) -> None:
        super().__init__()
        width = config.d_model
        self.embedding = TokenEmbedding(
            config, vocab_size, max_length=max_length, pretrained=pretrained
        )
        self.segments = nn.Embedding(2, width) if joint else None
        self.encoder = Encoder(config)
        self.pooling = config.pooling
        self.head = comparison_head(width, num_labels, config.dropout)

    def forward(self, batch: TextPairInput) -> Output:
        """Logits (B, L) of B pairs."""
        x = self.embedding(batch.tokens)
        if self.segments is not None:
            x = x + self.segments(batch.second.long())
        encoded = self.encoder(x, batch.mask)
        if self.segments is not None:
            u, v = (
                pool(encoded.hidden, batch.mask & segment, self.pooling, self.group)
                for segment in (~batch.second, batch.second)
            )
        else:
            u, v = pool(encoded.hidden, batch.mask, self.pooling, self.group).chunk(2)
        return Output(self.head(compare(u, v)), encoded)


def comparison_head(width: int, num_labels: int, dropout: float) -> nn.Sequential:
    """Make the head behind `compare`: one hidden layer of that width."""
    return nn.Sequential(
        Dropout(dropout),
        nn.Linear(4 * width, width),
        nn.ReLU(),
        Dropout(dropout),
        nn.Linear(width, num_labels),
    )


def compare(u: Tensor, v: Tensor) -> Tensor:
    """Compare vectors of texts, (B, E) each: (u, v, |u - v|, u * v), (B, 4 E)."""
    return torch.cat([u, v, (u - v).abs(), u * v], -1)
