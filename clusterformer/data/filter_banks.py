"""Log-mel filter banks of recordings, with deltas.

S samples   N frames   K frequencies of a frame   F features of a frame
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.errors import InputError, require_at_least

_FLOOR = 1e-7  # of a filter's energy, before the logarithm: noise of one step of 16 bits
_LOWEST = 20.0  # hertz; below it recordings hold hum and offset
_REACH = 2  # frames before and after that a delta reads, as in HTK


@dataclass(frozen=True)
class FilterBanks:
    """Features of 10 ms of a recording: energies in bands of the mel scale, and their changes.

    Attributes:
        rate: Samples per second; recordings of another rate are resampled.
        num_mels: Number of filters, 40 or 80 in most papers.
        deltas: Order of differences in time that are appended: 1 for velocity, 2 for acceleration
            too, 0 for none.
        window_ms: Length of the window of a frame, milliseconds.
        hop_ms: Time from one frame to the next, milliseconds.
    """

    rate: int = 16_000
    num_mels: int = 40
    deltas: int = 2
    window_ms: float = 25.0
    hop_ms: float = 10.0

    def __post_init__(self) -> None:
        require_at_least(1000, rate=self.rate)
        require_at_least(1, num_mels=self.num_mels, window_ms=self.window_ms, hop_ms=self.hop_ms)
        if self.deltas not in (0, 1, 2):
            raise InputError(f"deltas must be 0, 1 or 2, got {self.deltas}")
        if not bool(self._filters.sum(0).all()):
            raise InputError(
                f"num_mels {self.num_mels} is too many for rate {self.rate} and window_ms "
                f"{self.window_ms:g}: some filters hold no frequency"
            )

    @property
    def window(self) -> int:
        """Length of the window, samples."""
        return round(self.rate * self.window_ms / 1000)

    @property
    def hop(self) -> int:
        """Samples from one frame to the next."""
        return round(self.rate * self.hop_ms / 1000)

    @property
    def width(self) -> int:
        """F, number of features of a frame."""
        return self.num_mels * (1 + self.deltas)

    def num_frames(self, num_samples: int) -> int:
        """Return the number of whole windows in a recording."""
        return max(0, 1 + (num_samples - self.window) // self.hop)

    def __call__(self, samples: Tensor) -> Tensor:
        """Compute the features (N, F) of samples (S,); a recording without a window has none."""
        if len(samples) < self.window:
            return samples.new_zeros(0, self.width)
        frames = samples.unfold(0, self.window, self.hop)  # (N, window)
        frames = (frames - frames.mean(1, keepdim=True)) * torch.hann_window(self.window)
        power = torch.fft.rfft(frames, self._fft_size).abs().square()  # (N, K)
        blocks = [(power @ self._filters).clamp(min=_FLOOR).log()]
        for _ in range(self.deltas):
            blocks.append(delta_features(blocks[-1]))
        return torch.cat(blocks, 1)

    @property
    def _fft_size(self) -> int:
        """A power of two, twice the window: low filters are narrower than its frequencies."""
        return 2 * 2 ** math.ceil(math.log2(self.window))

    @cached_property
    def _filters(self) -> Tensor:
        """Triangles on the mel scale, (K, num_mels)."""
        frequencies = torch.linspace(0, self.rate / 2, self._fft_size // 2 + 1, dtype=torch.float64)
        mels = _mel(frequencies)[:, None]  # (K, 1)
        ends = _mel(torch.tensor([_LOWEST, self.rate / 2], dtype=torch.float64))
        edges = torch.linspace(ends[0], ends[1], self.num_mels + 2, dtype=torch.float64)
        left, centre, right = edges[:-2], edges[1:-1], edges[2:]
        rising, falling = (mels - left) / (centre - left), (right - mels) / (right - centre)
        return torch.minimum(rising, falling).clamp(min=0).float()


def _mel(frequency: Tensor) -> Tensor:
    return 2595 * torch.log10(1 + frequency / 700)


def delta_features(features: Tensor) -> Tensor:
    """Compute the slope of each feature over time by HTK's regression; the ends are repeated.

    d_t = sum_n n (c_(t+n) - c_(t-n)) / (2 sum_n n^2), n = 1, 2

    Args:
        features: (N, F).
    """
    padded = F.pad(features.T, (_REACH, _REACH), mode="replicate").T
    slope = torch.zeros_like(features)
    for n in range(1, _REACH + 1):
        before, after = _REACH - n, _REACH + n
        slope += n * (padded[after : after + len(features)] - padded[before:][: len(features)])
    return slope / (2 * sum(n * n for n in range(1, _REACH + 1)))
