"""Token embeddings with positions.

B batch   N tokens   E model width   V vocabulary
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from clusterformer.models.dropout import Dropout

PAD = 0
"""Number of the token that stands where a text has ended."""

Positions = Literal["sinusoidal", "learned", "rotary", "none"]
"""Rotary ones are the business of attention; an embedding then adds nothing."""


def sinusoidal_positions(positions: Tensor, width: int) -> Tensor:
    """Sines and cosines of geometric wavelengths (Vaswani et al., 2017, section 3.5).

    Args:
        positions: Integers of any shape.
        width: E.

    Returns:
        (..., E); the first half sines, the second half cosines.
    """
    half = (width + 1) // 2
    rates = torch.exp(torch.arange(half, device=positions.device) * (-math.log(1e4) / half))
    angles = positions[..., None] * rates
    return torch.cat([angles.sin(), angles.cos()], -1)[..., :width]


class TokenEmbedding(nn.Module):
    """Vectors of tokens plus their positions.

    Args:
        vocab_size: V. Token 0 is padding.
        d_model: E.
        positions: "sinusoidal" (any length) or "learned" (up to `max_length`) are added; "rotary"
            and "none" add nothing here.
        max_length: Longest text for learned positions, tokens.
        dropout: Share of entries dropped.
        pretrained: (V, P) vectors to start from; where P differs from E they are projected.

    Raises:
        ValueError: in `forward`, if a text is longer than learned positions reach.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        *,
        positions: Positions = "sinusoidal",
        max_length: int = 512,
        dropout: float = 0.0,
        pretrained: Tensor | None = None,
    ) -> None:
        super().__init__()
        if positions not in get_args(Positions):
            raise ValueError(f"positions must be one of {get_args(Positions)}, got {positions!r}")
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
        self.positions = positions
        if positions == "learned":
            self.table = nn.Embedding(max_length, d_model)
            nn.init.normal_(self.table.weight, std=0.02)
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Tensor, start: int | Tensor = 0) -> Tensor:
        """Tokens (B, N) at places start, start + 1, ... -> (B, N, E).

        Args:
            tokens: Integers.
            start: One for all rows, or (B,).
        """
        x = self.project(self.tokens(tokens)) * self.scale
        places = torch.arange(tokens.shape[1], device=tokens.device)
        places = places + (start[:, None] if isinstance(start, Tensor) else start)
        if self.positions == "sinusoidal":
            x = x + sinusoidal_positions(places, x.shape[-1]).to(x.dtype)
        elif self.positions == "learned":
            longest = self.table.num_embeddings
            furthest = int(start.max()) if isinstance(start, Tensor) else start
            if (reached := furthest + tokens.shape[1]) > longest:
                raise ValueError(
                    f"a text of {reached} tokens is longer than the {longest} "
                    "learned positions; raise max_length or use sinusoidal positions"
                )
            x = x + self.table(places)
        return self.dropout(x)
