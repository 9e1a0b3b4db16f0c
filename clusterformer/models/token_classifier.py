"""Networks that give every token of a text a label.

B batch   N tokens   V vocabulary   L labels
"""

from __future__ import annotations

from torch import nn

from clusterformer.models.config import TransformerConfig
from clusterformer.models.embeddings import TokenEmbedding
from clusterformer.models.inputs import KeyValueInput, TextInput
from clusterformer.models.transformer import Encoder, Output


class TokenClassifier(nn.Module):
    """Embedding, encoder, and a linear map to the labels at every token.

    Args:
        config: Shape of the encoder.
        vocab_size: V.
        num_labels: L.
        max_length: Longest text, for learned positions.
    """

    def __init__(
        self, config: TransformerConfig, *, vocab_size: int, num_labels: int, max_length: int
    ) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(config, vocab_size, max_length=max_length)
        self.encoder = Encoder(config)
        self.head = nn.Linear(config.d_model, num_labels)

    def forward(self, batch: TextInput) -> Output:
        """Logits (B, N, L) of texts (B, N)."""
        encoded = self.encoder(self.embedding(batch.tokens), batch.mask)
        return Output(self.head(encoded.hidden), encoded)


class KeyValueClassifier(nn.Module):
    """Embeddings of key and value, encoder, and a linear map to the values at every token.

    Args:
        config: Shape of the encoder.
        num_keys: Keys to tell apart, from 1; 0 is padding.
        num_values: L, values to tell apart; `num_values` itself stands for an unknown one.
        max_length: Longest text, for learned positions.
    """

    def __init__(
        self, config: TransformerConfig, *, num_keys: int, num_values: int, max_length: int
    ) -> None:
        super().__init__()
        self.keys = TokenEmbedding(config, num_keys + 1, max_length=max_length)
        self.values = nn.Embedding(num_values + 1, config.d_model)
        self.encoder = Encoder(config)
        self.head = nn.Linear(config.d_model, num_values)

    def forward(self, batch: KeyValueInput) -> Output:
        """Logits (B, N, L) of texts (B, N)."""
        embedded = self.keys(batch.tokens) + self.values(batch.values)
        encoded = self.encoder(embedded, batch.mask)
        return Output(self.head(encoded.hidden), encoded)
