"""Token embeddings with positions.

B batch   N tokens   E model width   V vocabulary
"""

import math

import torch
from torch import Tensor, nn

from clusterformer.errors import InputError
from clusterformer.models.config import TransformerConfig
from clusterformer.models.dropout import Dropout

PAD = 0
"""Id of the token that fills a row; the mask, not this value, marks padding."""


def sinusoidal_positions(positions: Tensor, width: int) -> Tensor:
    """Compute sines and cosines of geometric wavelengths (Vaswani et al., 2017, section 3.5).

    Args:
        positions: Integers of any shape.
        width: E.

    Returns:
        (..., E) in float32; the first half sines, the second half cosines.
    """
    half = (width + 1) // 2
    order = torch.arange(half, dtype=torch.float32, device=positions.device)
    rates = torch.exp(order * (-math.log(1e4) / half))
    angles = positions[..., None] * rates
    return torch.cat([angles.sin(), angles.cos()], -1)[..., :width]


def require_positions(length: int, limit: int) -> None:
    """Refuse a text of more tokens than there are learned positions.

    Args:
        length: Number of its tokens.
        limit: Number of learned positions.

    Raises:
        InputError: with both numbers.
    """
    if length > limit:
        raise InputError(
            f"a text of {length} tokens is longer than the {limit} learned positions of the "
            "model; shorten it, or train with rotary or sinusoidal positions"
        )


class TokenEmbedding(nn.Module):
    """Vectors of tokens plus their positions.

    Sinusoidal (any length) and learned positions (up to `max_length`) are added here; rotary ones
    belong to attention.

    Args:
        config: Width, kind of positions and dropout.
        vocab_size: V. Token 0 is padding.
        max_length: Longest text for learned positions, tokens.
        pretrained: (V, any width) vectors to start from; a width other than E is projected.

    Raises:
        ValueError: in `forward`, if a text is longer than learned positions reach.
    """

    def __init__(
        self,
        config: TransformerConfig,
        vocab_size: int,
        *,
        max_length: int | None = None,
        pretrained: Tensor | None = None,
    ) -> None:
        super().__init__()
        d_model = config.d_model
        width = d_model if pretrained is None else pretrained.shape[1]
        self.tokens = nn.Embedding(vocab_size, width, padding_idx=PAD)
        if pretrained is None:
            nn.init.normal_(self.tokens.weight, std=d_model**-0.5)
        else:
            if pretrained.shape[0] != vocab_size:
                raise ValueError(f"pretrained has {pretrained.shape[0]} rows, not {vocab_size}")
            # Trained vectors come in any scale; rows of unit length on average, like random ones.
            norm = pretrained.norm(dim=1).mean().clamp(min=1e-8)
            self.tokens.weight.data.copy_(pretrained / norm)
        self.tokens.weight.data[PAD].zero_()
        self.project = nn.Linear(width, d_model, bias=False) if width != d_model else nn.Identity()
        self.scale = math.sqrt(d_model)
        self.positions = config.positions
        if self.positions == "learned":
            self.table = nn.Embedding(max_length or 512, d_model)
            nn.init.normal_(self.table.weight, std=0.02)
        self.dropout = Dropout(config.dropout)

    @property
    def num_positions(self) -> int | None:
        """Number of learned positions; None where a text may have any length."""
        return self.table.num_embeddings if self.positions == "learned" else None

    def forward(self, tokens: Tensor, start: int | Tensor = 0) -> Tensor:
        """Embed tokens (B, N) at positions start, start + 1, ... as (B, N, E).

        Args:
            tokens: Token numbers.
            start: Position of the first token, one number or (B,).
        """
        x = self.project(self.tokens(tokens)) * self.scale
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        positions = positions + (start[:, None] if isinstance(start, Tensor) else start)
        if self.positions == "sinusoidal":
            x = x + sinusoidal_positions(positions, x.shape[-1]).to(x.dtype)
        elif self.positions == "learned":
            last = int(start.max()) if isinstance(start, Tensor) else start
            require_positions(last + tokens.shape[1], self.table.num_embeddings)
            x = x + self.table(positions)
        return self.dropout(x)
