"""A masked language model: hidden tokens from those on both sides of them.

B batch   N tokens   A masked tokens   E model width   V vocabulary
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from clusterformer.kernels.rows import pick_tokens
from clusterformer.masks import mask_if_padded
from clusterformer.models.config import TransformerConfig
from clusterformer.models.embeddings import TokenEmbedding
from clusterformer.models.inputs import MaskedInput
from clusterformer.models.pooling import pool
from clusterformer.models.transformer import Encoder, Output

if TYPE_CHECKING:
    from clusterformer.sequence_parallel import SequenceGroup


class MaskedLanguageModel(nn.Module):
    """Encoder whose output map is the embedding, computed where tokens are masked and nowhere else.

    Tokens of a second segment get one more vector; those of the first have none, so a model of
    single texts may start from this one.

    Args:
        config: Shape of the encoder.
        vocab_size: V. Token 0 is padding.
        next_sentence: Whether the first token says if the second segment follows the first.
        max_length: Longest row, for learned positions.

    Attributes:
        group: Processes of which each has a part of every row; None if this one has all.
    """

    group: SequenceGroup | None = None

    def __init__(
        self,
        config: TransformerConfig,
        *,
        vocab_size: int,
        next_sentence: bool = False,
        max_length: int | None = None,
    ) -> None:
        super().__init__()
        width = config.d_model
        self.embedding = TokenEmbedding(config, vocab_size, max_length=max_length)
        self.segments = nn.Embedding(2, width, padding_idx=0) if next_sentence else None
        self.encoder = Encoder(config)
        self.predictor = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.following = None
        if next_sentence:
            self.following = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, batch: MaskedInput) -> Output:
        """Logits (B, A, V) of the masked tokens, and (B, 2) of whether the second segment follows.

        The latter are `row_logits`, None without next sentences.
        """
        x = self.embedding(batch.tokens)
        if self.segments is not None:
            x = x + self.segments(batch.second.long())
        encoded = self.encoder(x, mask_if_padded(batch.mask))
        hidden = self.predictor(pick_tokens(encoded.hidden, batch.asked))
        logits = F.linear(hidden, self.embedding.tokens.weight, self.bias)
        rows = None
        if self.following is not None:
            rows = self.following(pool(encoded.hidden, batch.mask, "first", self.group))
        return Output(logits, encoded, row_logits=rows)
