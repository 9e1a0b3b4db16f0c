"""Encoder and decoder: one text in, another out.

B batch   M source tokens   N target tokens   E model width   V target vocabulary
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.models.config import TransformerConfig
from clusterformer.models.decoder import Decoder, State
from clusterformer.models.embeddings import TokenEmbedding
from clusterformer.models.inputs import TextInput, TranslationInput
from clusterformer.models.transformer import Encoder, Output


class Seq2Seq(nn.Module):
    """Transformer from text to text; the output map is the target embedding (Press and Wolf, 2017).

    Args:
        config: Shape of encoder and decoder.
        source_size: Source tokens in the vocabulary. Token 0 is padding.
        target_size: V; the same where embeddings are shared.
        share_embeddings: One table for source, target and output, for a joint vocabulary.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        source_size: int,
        target_size: int,
        share_embeddings: bool = False,
    ) -> None:
        super().__init__()
        if share_embeddings and source_size != target_size:
            raise ValueError(
                f"share_embeddings needs one vocabulary, got {source_size} source and "
                f"{target_size} target tokens"
            )
        self.source = TokenEmbedding(config, source_size)
        self.target = self.source if share_embeddings else TokenEmbedding(config, target_size)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config, cross=True)

    def forward(self, batch: TranslationInput) -> Output:
        """Logits (B, N, V) of the token after each one that the decoder reads."""
        encoded = self.encoder(self.source(batch.tokens), batch.mask)
        decoded = self.decoder(
            self.target(batch.decoder_input), batch.decoder_mask, encoded.hidden, batch.mask
        )
        return Output(self._logits(decoded.hidden), encoded, decoded)

    def start(self, batch: TextInput) -> State:
        """Encode the source (B, M) and make the state before the first target token."""
        return self.start_from(
            self.encoder(self.source(batch.tokens), batch.mask).hidden, batch.mask
        )

    def start_from(self, memory: Tensor, memory_mask: Tensor) -> State:
        """Make the state before the first target token of texts (B, M, E) encoded already."""
        return self.decoder.start(memory, memory, memory_mask)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token a row (rows,) -> logits (rows, V) of the next, and the next state."""
        hidden, state = self.decoder.step(self.target(tokens[:, None], state.position), state)
        return self._logits(hidden[:, 0]), state

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.target.tokens.weight)
