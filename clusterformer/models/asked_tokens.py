"""A language model that answers at some tokens only.

B batch   N tokens   A tokens that ask   V vocabulary
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from clusterformer.models.inputs import TextInput
from clusterformer.models.language_model import LanguageModel
from clusterformer.models.transformer import Output


class AskingInput(TextInput, Protocol):
    """Texts, and the positions that ask."""

    @property
    def asked(self) -> Tensor:
        """(B, A) positions."""
        ...


class AskedTokens(LanguageModel):
    """A causal language model whose logits are computed where a text asks, and nowhere else.

    The map to a large vocabulary would else take most of the time.
    """

    def forward(self, batch: AskingInput) -> Output:  # type: ignore[override]
        """Logits (B, A, V) of texts (B, N)."""
        mask = None if bool(batch.mask.all()) else batch.mask
        encoded = self.decoder(self.embedding(batch.tokens), mask)
        index = batch.asked[..., None].expand(-1, -1, encoded.hidden.shape[-1])
        return Output(self._logits(encoded.hidden.gather(1, index)), encoded)
