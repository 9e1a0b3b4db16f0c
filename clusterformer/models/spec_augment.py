"""What is hidden and warped in the recordings that train a speech recogniser.

B batch   N frames   F features
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clusterformer.errors import require_at_least, require_share


@dataclass(frozen=True)
class SpecAugment:
    """Bands of frequencies and stretches of time that are hidden in training (Park et al., 2019).

    With `warp`, each recording's filters are stretched or compressed too, as by a shorter or a
    longer vocal tract: about what Jaitly and Hinton (2013) do in hertz, here in filters.

    Attributes:
        bands: Number of bands of filters; 0 for none.
        band_share: Largest share of the filters in a band, from 0 to below 1.
        stretches: Number of stretches of frames; 0 for none.
        stretch_frames: Most frames of a stretch.
        stretch_share: Most frames of a stretch as a share of the recording, from 0 to below 1.
        warp: Largest share by which filters are stretched or compressed, from 0 to below 1.
    """

    bands: int = 2
    band_share: float = 0.2
    stretches: int = 2
    stretch_frames: int = 20
    stretch_share: float = 0.05
    warp: float = 0.0

    def __post_init__(self) -> None:
        require_at_least(0, bands=self.bands, stretches=self.stretches)
        require_at_least(0, stretch_frames=self.stretch_frames)
        require_share(band_share=self.band_share, stretch_share=self.stretch_share, warp=self.warp)

    def warped(self, features: Tensor, num_mels: int) -> Tensor:
        """Read filter m of features (B, N, F) at m (1 + w), w of each recording in -warp..warp.

        Between two filters their values are interpolated; beyond the last one it is repeated.
        """
        if not self.warp:
            return features
        drawn = torch.rand(len(features), 1, dtype=torch.float32, device=features.device)
        factor = 1 + self.warp * (2 * drawn - 1)
        frequency = factor * torch.arange(num_mels, device=features.device)  # (B, num_mels)
        frequency = frequency.clamp(max=num_mels - 1)[:, None, None]
        by_order = features.unflatten(2, (-1, num_mels))  # of differences
        below, above = (
            by_order.gather(3, side.long().expand_as(by_order))
            for side in (frequency.floor(), frequency.ceil())
        )
        return torch.lerp(below, above, frequency.frac().to(features)).flatten(2)

    def __call__(self, features: Tensor, frames: Tensor, num_mels: int) -> Tensor:
        """Set hidden features to 0, their mean: (B, N, F), the deltas of a filter with it."""
        batch, length, width = features.shape
        rows = torch.full((batch,), float(num_mels), dtype=torch.float32, device=features.device)
        hidden = _spans(rows, num_mels, self.bands, self.band_share * rows)
        hidden = hidden.repeat(1, width // num_mels)[:, None]
        most = (self.stretch_share * frames.float()).clamp(max=self.stretch_frames)
        hidden = hidden | _spans(frames, length, self.stretches, most)[..., None]
        return features.masked_fill(hidden, 0.0)


def _spans(sizes: Tensor, length: int, count: int, most: Tensor) -> Tensor:
    """Draw `count` spans a row, each up to `most` (B,) long, within its size (B,): (B, length)."""
    drawn = torch.rand(2, len(sizes), count, dtype=torch.float32, device=sizes.device)
    widths = (drawn[0] * (most[:, None].floor() + 1)).floor()
    starts = (drawn[1] * (sizes[:, None] - widths + 1).clamp(min=1)).floor()
    at = torch.arange(length, device=sizes.device)[:, None, None]
    return ((at >= starts) & (at < starts + widths)).any(-1).T
