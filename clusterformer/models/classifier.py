"""The network that gives a text one label.

Letters: B batch, N tokens, V vocabulary, L labels, P width of the word vectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from clusterformer.models.architecture import Architecture
from clusterformer.models.dropout import Dropout
from clusterformer.models.embeddings import TokenEmbedding
from clusterformer.models.pooling import pool
from clusterformer.models.transformer import Output

if TYPE_CHECKING:
    from clusterformer.task import Batch


class TextClassifier(nn.Module):
    """Embedding, encoder, pooling over tokens, dropout and a linear map to the labels.

    Args:
        architecture: Shape of the encoder.
        vocab_size: V.
        num_labels: L.
        max_length: Longest text, for learned positions; None for the embedding's own default.
        pretrained: (V, P) word vectors to start from.
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        vocab_size: int,
        num_labels: int,
        max_length: int | None = None,
        pretrained: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(
            vocab_size,
            architecture.d_model,
            positions=architecture.positions,
            max_length=max_length or 512,
            dropout=architecture.dropout,
            pretrained=pretrained,
        )
        self.encoder = architecture.encoder()
        self.pooling = architecture.pooling
        self.dropout = Dropout(architecture.dropout)
        self.head = nn.Linear(architecture.d_model, num_labels)

    def forward(self, batch: Batch) -> Output:
        """Logits (B, L) of texts (B, N)."""
        encoded = self.encoder(self.embedding(batch.tokens), batch.mask)
        text = pool(encoded.hidden, batch.mask, self.pooling)
        return Output(self.head(self.dropout(text)), encoded)
