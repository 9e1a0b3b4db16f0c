"""A language model: the next token from the tokens before it.

B batch   N tokens   R rows while generating   E model width   V vocabulary
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.models.architecture import Architecture
from clusterformer.models.decoder import State
from clusterformer.models.embeddings import TokenEmbedding
from clusterformer.models.transformer import Output


class Tokens(Protocol):
    """What `LanguageModel` reads of a batch: tokens (B, N) and mask (B, N), True at real ones."""

    @property
    def tokens(self) -> Tensor: ...
    @property
    def mask(self) -> Tensor: ...


class LanguageModel(nn.Module):
    """Causal stack; the output map is the embedding (Press and Wolf, 2017).

    Args:
        architecture: Shape of the stack.
        vocab_size: V. Token 0 is padding.
        max_length: Longest text, for learned positions.
    """

    def __init__(
        self, architecture: Architecture, *, vocab_size: int, max_length: int = 512
    ) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(
            vocab_size,
            architecture.d_model,
            positions=architecture.positions,
            max_length=max_length,
            dropout=architecture.dropout,
        )
        self.decoder = architecture.decoder()

    def forward(self, batch: Tokens) -> Output:
        """Logits (B, N, V) of the token after each."""
        # a causal mechanism is faster when it need not look for padding
        mask = None if bool(batch.mask.all()) else batch.mask
        encoded = self.decoder(self.embedding(batch.tokens), mask)
        return Output(self._logits(encoded.hidden), encoded)

    def start(self, rows: int = 1) -> State:
        """The state before the first token of some texts."""
        weight = self.embedding.tokens.weight
        return self.decoder.cache(torch.empty(rows, 0, device=weight.device, dtype=weight.dtype))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token a row (R,) -> logits (R, V) of the next, and the next state."""
        hidden, state = self.decoder.step(self.embedding(tokens[:, None], state.place), state)
        return self._logits(hidden[:, 0]), state

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embedding.tokens.weight)
