"""A language model that answers at some tokens only.

B batch   N tokens   A tokens that ask   V vocabulary
"""

from __future__ import annotations

from clusterformer.kernels.rows import pick_tokens
from clusterformer.models.inputs import AskingInput
from clusterformer.models.language_model import LanguageModel
from clusterformer.models.transformer import Output


class AskedTokens(LanguageModel):
    """A causal language model whose logits are computed where a text asks, and nowhere else.

    The map to a large vocabulary would else take most of the time.
    """

    def forward(self, batch: AskingInput) -> Output:  # type: ignore[override]
        """Logits (B, A, V) of texts (B, N)."""
        encoded = self._encode(batch)
        return Output(self._logits(pick_tokens(encoded.hidden, batch.asked)), encoded)
