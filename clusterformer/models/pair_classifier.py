"""The network that gives a pair of texts one label.

Letters: B pairs, R rows of tokens, N tokens, E model width, V vocabulary, L labels, P width of the
word vectors.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from clusterformer.models.architecture import Architecture
from clusterformer.models.dropout import Dropout
from clusterformer.models.embeddings import TokenEmbedding
from clusterformer.models.pooling import pool
from clusterformer.models.transformer import Output


class PairBatch(NamedTuple):
    """Pairs of texts. A row is what is encoded together.

    Apart, R = 2 B: a row for each first text, then one for each second text. Joint, R = B: both
    texts of a pair in one row, a separator between them.
    """

    tokens: Tensor  # (R, N) int64
    mask: Tensor  # (R, N) bool, True at real tokens
    target: Tensor  # (B,) int64
    second: Tensor  # (R, N) bool, True at tokens of a second text
    group: Tensor  # (B,) int64: number of the question from 1, or 0 where there is none


class PairClassifier(nn.Module):
    """Encode both texts with one encoder, pool each, compare them, and map that to the labels.

    What is compared are the texts' vectors u and v, as (u, v, |u - v|, u * v) (Mou et al., 2016;
    Conneau et al., 2017), through one hidden layer. Apart, a text's vector does not depend on its
    partner; joint, tokens of both attend to each other, and segment embeddings tell them apart.

    Args:
        architecture: Shape of the encoder.
        vocab_size: V, the separator included.
        num_labels: L.
        joint: Whether a row holds both texts of a pair.
        max_length: Longest row, for learned positions; None for the embedding's own default.
        pretrained: (V, P) word vectors to start from.
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        vocab_size: int,
        num_labels: int,
        joint: bool = False,
        max_length: int | None = None,
        pretrained: Tensor | None = None,
    ) -> None:
        super().__init__()
        width = architecture.d_model
        self.embedding = TokenEmbedding(
            vocab_size,
            width,
            positions=architecture.positions,
            max_length=max_length or 512,
            dropout=architecture.dropout,
            pretrained=pretrained,
        )
        self.segments = nn.Embedding(2, width) if joint else None
        self.encoder = architecture.encoder()
        self.pooling = architecture.pooling
        self.head = nn.Sequential(
            Dropout(architecture.dropout),
            nn.Linear(4 * width, width),
            nn.ReLU(),
            Dropout(architecture.dropout),
            nn.Linear(width, num_labels),
        )

    def forward(self, batch: PairBatch) -> Output:
        """Logits (B, L)."""
        x = self.embedding(batch.tokens)
        if self.segments is not None:
            x = x + self.segments(batch.second.long())
        encoded = self.encoder(x, batch.mask)
        if self.segments is not None:
            u, v = (
                pool(encoded.hidden, batch.mask & segment, self.pooling)
                for segment in (~batch.second, batch.second)
            )
        else:
            u, v = pool(encoded.hidden, batch.mask, self.pooling).chunk(2)
        return Output(self.head(torch.cat([u, v, (u - v).abs(), u * v], -1)), encoded)
