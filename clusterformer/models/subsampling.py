"""What reads a spectrogram before a recogniser's encoder, and makes fewer frames of it.

B batch   N frames   F features   M frames after subsampling   E width that comes out
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_CHANNELS = (32, 48, 64)
_STRIDES = {1: (1, 1, 1), 2: (2, 1, 1), 4: (2, 1, 2)}


class TimeConvolutions(nn.Module):
    """Convolutions over three frames, each of which halves their number, and a linear map.

    Args:
        num_features: F.
        width: E.
        subsampling: Frames that become one: 1 (no convolution), 2 or 4.
    """

    def __init__(self, *, num_features: int, width: int, subsampling: int) -> None:
        super().__init__()
        widths = [num_features] + [width] * (subsampling.bit_length() - 1)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(each, width, 3, stride=2, padding=1) for each in widths[:-1]
        )
        self.project = nn.Linear(widths[-1], width)

    def forward(self, x: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, N, F), of which `frames` (B,) are real -> (B, M, E), and their number."""
        x = without_padding(x, frames)
        for convolution in self.convolutions:
            frames = (frames + 1) // 2
            x = F.relu(convolution(x.transpose(1, 2)).transpose(1, 2))
            x = without_padding(x, frames)
        return self.project(x), frames


class FrequencyConvolutions(nn.Module):
    """Convolutions of 3 x 3 over time and frequency, three, and a linear map.

    Another voice has its formants at other filters. A convolution over frequency finds them there,
    and the larger of two neighbours, taken after each, forgets where exactly they were. These are
    the VGG layers that Hori et al. (2017, arXiv 1706.02737) put before their recogniser, with fewer
    channels, and each normalises its frames.

    Args:
        num_features: F, a multiple of `num_mels`: the orders of differences are channels.
        num_mels: Number of filters.
        width: E.
        subsampling: Frames that become one: 1, 2 or 4.
    """

    def __init__(self, *, num_features: int, num_mels: int, width: int, subsampling: int) -> None:
        super().__init__()
        self.num_mels, self.strides = num_mels, _STRIDES[subsampling]
        self.convolutions, self.norms = nn.ModuleList(), nn.ModuleList()
        channels, filters = num_features // num_mels, num_mels
        for count in _CHANNELS:
            self.convolutions.append(nn.Conv2d(channels, count, 3, padding=1))
            self.norms.append(nn.LayerNorm([count, filters]))
            channels, filters = count, (filters + 1) // 2
        self.project = nn.Linear(channels * filters, width)

    def forward(self, x: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, N, F), of which `frames` (B,) are real -> (B, M, E), and their number."""
        x = without_padding(x, frames).unflatten(2, (-1, self.num_mels))
        layers = zip(self.convolutions, self.norms, self.strides, strict=True)
        for convolution, norm, stride in layers:  # (B, frames, channels, filters)
            x = norm(convolution(x.transpose(1, 2)).transpose(1, 2))
            x = without_padding(F.relu(x), frames)  # as small as any: the larger is a real one
            x = F.max_pool2d(x.transpose(1, 2), (stride, 2), ceil_mode=True).transpose(1, 2)
            frames = (frames + stride - 1) // stride
        return self.project(x.flatten(2)), frames


def without_padding(x: Tensor, frames: Tensor) -> Tensor:
    """Set what stands behind the end of a recording, in x (B, N, ...), to 0: none reads it."""
    real = torch.arange(x.shape[1], device=x.device) < frames[:, None]
    return x.masked_fill(~real.view(*real.shape, *[1] * (x.dim() - 2)), 0.0)
