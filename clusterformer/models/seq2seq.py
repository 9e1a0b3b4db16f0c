"""Encoder and decoder: one text in, another out.

B batch   N source tokens   M target tokens   R rows while decoding   E model width
V target vocabulary
"""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.models.architecture import Architecture
from clusterformer.models.decoder import State
from clusterformer.models.embeddings import TokenEmbedding
from clusterformer.models.transformer import Output


class Source(Protocol):
    """What `Seq2Seq.start` reads of a batch: tokens (B, N) and mask (B, N), True at real ones."""

    @property
    def tokens(self) -> Tensor: ...
    @property
    def mask(self) -> Tensor: ...


class Pair(Source, Protocol):
    """And `Seq2Seq.forward`: what the decoder reads, (B, M), and its mask."""

    @property
    def decoder_input(self) -> Tensor: ...
    @property
    def decoder_mask(self) -> Tensor: ...


class Seq2Seq(nn.Module):
    """Transformer from text to text; the output map is the target embedding (Press and Wolf, 2017).

    Args:
        architecture: Shape of encoder and decoder.
        source_size: Source tokens in the vocabulary. Token 0 is padding.
        target_size: V; the same where embeddings are shared.
        share_embeddings: One table for source, target and output, for a joint vocabulary.
        max_length: Longest text, for learned positions.
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        source_size: int,
        target_size: int,
        share_embeddings: bool = False,
        max_length: int = 512,
    ) -> None:
        super().__init__()
        if share_embeddings and source_size != target_size:
            raise ValueError(
                f"share_embeddings needs one vocabulary, got {source_size} source and "
                f"{target_size} target tokens"
            )

        def embedding(size: int) -> TokenEmbedding:
            return TokenEmbedding(
                size,
                architecture.d_model,
                positions=architecture.positions,
                max_length=max_length,
                dropout=architecture.dropout,
            )

        self.source = embedding(source_size)
        self.target = self.source if share_embeddings else embedding(target_size)
        self.encoder = architecture.encoder()
        self.decoder = architecture.decoder(cross=True)

    def forward(self, batch: Pair) -> Output:
        """Logits (B, M, V) of the token after each one that the decoder reads."""
        encoded = self.encoder(self.source(batch.tokens), batch.mask)
        decoded = self.decoder(
            self.target(batch.decoder_input), batch.decoder_mask, encoded.hidden, batch.mask
        )
        return Output(self._logits(decoded.hidden), encoded, decoded)

    def start(self, batch: Source) -> State:
        """Encode the source; the state before the first target token, one row a text."""
        hidden = self.encoder(self.source(batch.tokens), batch.mask).hidden
        return self.decoder.cache(hidden, hidden, batch.mask)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token a row (R,) -> logits (R, V) of the next, and the next state."""
        hidden, state = self.decoder.step(self.target(tokens[:, None], state.place), state)
        return self._logits(hidden[:, 0]), state

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.target.tokens.weight)
