"""A pretrained encoder that names the tokens that a text asks for.

B batch   N tokens   A tokens that ask   E model width   V vocabulary
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.kernels.rows import pick_tokens
from clusterformer.models.inputs import AskingInput
from clusterformer.models.pretrained import PretrainedEncoder
from clusterformer.models.transformer import Output


class PretrainedAskedTokens(nn.Module):
    """A pretrained encoder, and a head as that of BERT for masked tokens.

    A linear map, GELU and layer norm; the output map is the embedding of the model (Devlin et al.,
    2019). Logits are computed where a text asks, and nowhere else.

    Args:
        encoder: The encoder.
    """

    def __init__(self, encoder: PretrainedEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        width = self._embedding.shape[1]
        self.transform = nn.Linear(encoder.width, width)
        self.norm = nn.LayerNorm(width)
        nn.init.constant_(self.norm.weight, width**-0.5)  # so that it begins by guessing

    @property
    def _embedding(self) -> Tensor:
        weight = self.encoder.model.get_input_embeddings().weight
        assert isinstance(weight, Tensor)
        return weight

    def forward(self, batch: AskingInput) -> Output:
        """Logits (B, A, V) of texts (B, N)."""
        encoded = self.encoder(batch.tokens, batch.mask)
        asked = pick_tokens(encoded.hidden, batch.asked)
        transformed = self.norm(F.gelu(self.transform(asked)))
        return Output(F.linear(transformed, self._embedding), encoded)
