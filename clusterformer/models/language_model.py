"""A language model: the next token from the tokens before it.

B batch   N tokens   E model width   V vocabulary
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.masks import mask_if_padded
from clusterformer.models.config import TransformerConfig
from clusterformer.models.decoder import Decoder, State
from clusterformer.models.embeddings import TokenEmbedding
from clusterformer.models.inputs import TextInput
from clusterformer.models.transformer import Output, StackOutput


class LanguageModel(nn.Module):
    """Causal stack; the output map is the embedding (Press and Wolf, 2017).

    Args:
        config: Shape of the stack.
        vocab_size: V. Token 0 is padding.
        max_length: Longest text, for learned positions.
    """

    def __init__(
        self, config: TransformerConfig, *, vocab_size: int, max_length: int | None = None
    ) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(config, vocab_size, max_length=max_length)
        self.decoder = Decoder(config)

    def forward(self, batch: TextInput) -> Output:
        """Logits (B, N, V) of the token after each."""
        encoded = self._encode(batch)
        return Output(self._logits(encoded.hidden), encoded)

    def start(self, rows: int = 1) -> State:
        """Make the state before the first token of some texts."""
        weight = self.embedding.tokens.weight
        return self.decoder.start(torch.empty(rows, 0, device=weight.device, dtype=weight.dtype))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token a row (rows,) -> logits (rows, V) of the next, and the next state."""
        hidden, state = self.decoder.step(self.embedding(tokens[:, None], state.position), state)
        return self._logits(hidden[:, 0]), state

    def prefill(self, tokens: Tensor) -> tuple[Tensor, State]:
        """Read the beginning of texts at once.

        Args:
            tokens: (rows, N), N at least 1.

        Returns:
            Logits (rows, V) of the token that follows, and the state: those of N calls of `step`.
        """
        hidden, state = self.decoder.prefill(self.embedding(tokens), self.start(len(tokens)))
        return self._logits(hidden[:, -1]), state

    def _encode(self, batch: TextInput) -> StackOutput:
        return self.decoder(self.embedding(batch.tokens), mask_if_padded(batch.mask))

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embedding.tokens.weight)
