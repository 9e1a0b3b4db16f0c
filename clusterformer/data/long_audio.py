"""Long recordings in overlapping windows, so that memory does not grow with their length.

N frames   F features
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from clusterformer.data.audio import expanded, read_audio, read_header
from clusterformer.data.filter_banks import FilterBanks
from clusterformer.data.speech_batches import compute

_log = logging.getLogger(__name__)

_OVERLAP = 0.1  # share of a window on each side that only gives context


class Window(NamedTuple):
    """A stretch of a recording.

    Attributes:
        features: (N, F).
        first: First output of the encoder that counts; the ones before are context.
        end: Output before which to stop.
    """

    features: Tensor
    first: int
    end: int


def read_windows(
    path: Path, banks: FilterBanks, longest: int, subsampling: int
) -> Iterator[Window]:
    """Read a recording in windows; the outputs that count are as many as without windows.

    A line says how much of a damaged recording can be read.

    Args:
        path: Recording.
        banks: Features to compute.
        longest: Most frames of a window; a recording that is no longer is one window.
        subsampling: Frames that the encoder reads as one.

    Raises:
        InputError: as `read_audio`.
    """
    path = expanded(path)
    header = read_header(path)
    scale = header.rate / banks.rate
    num_frames = banks.num_frames(math.ceil(header.num_samples / scale))
    if num_frames <= longest:
        features = compute(banks, read_audio(path, banks.rate))
        _warn_if_short(path, banks, len(features), num_frames)
        yield Window(features, 0, math.ceil(len(features) / subsampling))
        return
    context = max(1, int(_OVERLAP * longest) // subsampling)  # all in outputs from here on
    most = max(longest // subsampling, 2 * context + 1)
    step, outputs = most - 2 * context, math.ceil(num_frames / subsampling)
    read = 0  # frames
    for counted in range(0, outputs, step):
        start = max(0, counted - context)
        stop = min(outputs, counted + step + context)
        frames = start * subsampling, min(stop * subsampling, num_frames)
        samples = frames[0] * banks.hop, (frames[1] - 1) * banks.hop + banks.window
        part = read_audio(path, banks.rate, int(samples[0] * scale), math.ceil(samples[1] * scale))
        features = compute(banks, part)
        window = Window(features, counted - start, min(counted + step, outputs) - start)
        last = min(banks.num_frames(len(part)), subsampling * window.end)
        read += max(0, last - subsampling * window.first)
        yield window
    _warn_if_short(path, banks, read, num_frames)


def _warn_if_short(path: Path, banks: FilterBanks, read: int, promised: int) -> None:
    if read < promised:
        found, whole = (frames * banks.hop / banks.rate for frames in (read, promised))
        rank_zero_only(_log.warning)(
            f"{path}: damaged, only {found:.2f} of {whole:.2f} seconds can be read"
        )
