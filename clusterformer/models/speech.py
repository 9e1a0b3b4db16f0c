"""A network that gives every frame of a recording the scores of units and a blank.

B batch   N frames   F features   M frames after subsampling   E model width   V units and blank
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.errors import InputError, require_one_of
from clusterformer.models.config import TransformerConfig
from clusterformer.models.dropout import Dropout
from clusterformer.models.embeddings import sinusoidal_positions
from clusterformer.models.inputs import SpeechInput
from clusterformer.models.spec_augment import SpecAugment
from clusterformer.models.subsampling import (
    FrequencyConvolutions,
    TimeConvolutions,
    without_padding,
)
from clusterformer.models.transformer import Encoder, Output

Convolutions = Literal["1d", "2d"]
"""Convolutions before the encoder: over time, or over time and frequency."""


class ContextConvolution(nn.Module):
    """Convolution over five frames with a residual connection: what stands near, for any attention.

    Mohamed et al. (2019) let such convolutions read before a Transformer; ours normalise first.

    Args:
        config: Width of the frames, and dropout.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model)
        self.convolution = nn.Conv1d(config.d_model, config.d_model, 5, padding=2)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, frames: Tensor) -> Tensor:
        """Frames (B, M, E), of which (B,) are real -> (B, M, E)."""
        near = without_padding(self.norm(x), frames).transpose(1, 2)
        return x + self.dropout(F.relu(self.convolution(near).transpose(1, 2)))


class SpeechNetwork(nn.Module):
    """Normalisation, subsampling, encoder, and a linear map to the units at every frame.

    Args:
        config: Shape of the encoder.
        num_features: F.
        num_mels: Number of filters; the features are these and their differences.
        num_units: V - 1.
        subsampling: Frames that the encoder reads as one: 1, 2 or 4.
        convolutions: Whether the convolutions before the encoder are over time alone, "1d", or over
            time and frequency, "2d".
        context_convolutions: Number of convolutions over five frames between subsampling and
            encoder.
        augment: What is hidden and warped in training; None for nothing.

    Attributes:
        mean, scale: Mean of each feature over the training data, and 1 / its deviation, (F,).

    Raises:
        InputError: for another subsampling or other convolutions, or learned positions.
    """

    mean: Tensor
    scale: Tensor

    def __init__(
        self,
        config: TransformerConfig,
        *,
        num_features: int,
        num_mels: int,
        num_units: int,
        subsampling: int = 1,
        convolutions: Convolutions = "1d",
        context_convolutions: int = 0,
        augment: SpecAugment | None = None,
    ) -> None:
        super().__init__()
        if subsampling not in (1, 2, 4):
            raise InputError(f"subsampling must be 1, 2 or 4, got {subsampling}")
        require_one_of(get_args(Convolutions), convolutions=convolutions)
        if config.positions == "learned":
            raise InputError("positions must be sinusoidal, rotary or none for speech, got learned")
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("scale", torch.ones(num_features))
        self.num_mels, self.augment = num_mels, augment
        self.subsampling: TimeConvolutions | FrequencyConvolutions
        shape = {"num_features": num_features, "width": config.d_model, "subsampling": subsampling}
        if convolutions == "1d":
            self.subsampling = TimeConvolutions(**shape)
        else:
            self.subsampling = FrequencyConvolutions(num_mels=num_mels, **shape)
        self.context = nn.ModuleList(
            ContextConvolution(config) for _ in range(context_convolutions)
        )
        self.sinusoidal = config.positions == "sinusoidal"
        self.dropout = Dropout(config.dropout)
        self.encoder = Encoder(config)
        self.head = nn.Linear(config.d_model, num_units + 1)

    def forward(self, batch: SpeechInput) -> Output:
        """Logits (B, M, V) of recordings (B, N, F)."""
        features, frames = batch.features, batch.frames
        augment = self.augment if self.training else None
        if augment is not None:
            features = augment.warped(features, self.num_mels)
        features = ((features - self.mean) * self.scale).to(self.mean.dtype)
        if augment is not None:
            features = augment(features, frames, self.num_mels)
        x, frames = self.subsampling(features, frames)
        for convolution in self.context:
            x = convolution(x, frames)
        if self.sinusoidal:
            positions = torch.arange(x.shape[1], device=x.device)
            x = x + sinusoidal_positions(positions, x.shape[-1]).to(x.dtype)
        encoded = self.encoder(self.dropout(x), batch.mask)
        return Output(self.head(encoded.hidden), encoded)
