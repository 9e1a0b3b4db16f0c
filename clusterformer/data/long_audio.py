"""Long recordings in overlapping windows, so that memory does not grow with their length.

N frames   F features
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from clusterformer.data.audio import read_audio, read_header
from clusterformer.data.filter_banks import FilterBanks
from clusterformer.data.speech_batches import compute

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

    Args:
        path: Recording.
        banks: Features to compute.
        longest: Most frames of a window; a recording that is no longer is one window.
        subsampling: Frames that the encoder reads as one.

    Raises:
        InputError: as `read_audio`.
    """
    path = path.expanduser()
    header = read_header(path)
    scale = header.rate / banks.rate
    num_frames = banks.num_frames(math.ceil(header.num_samples / scale))
    if num_frames <= longest:
        features = compute(banks, read_audio(path, banks.rate))
        yield Window(features, 0, math.ceil(len(features) / subsampling))
        return
    context = max(1, int(_OVERLAP * longest) // subsampling)  # all in outputs from here on
    most = max(longest // subsampling, 2 * context + 1)
    step, outputs = most - 2 * context, math.ceil(num_frames / subsampling)
    for counted in range(0, outputs, step):
        start = max(0, counted - context)
        stop = min(outputs, counted + step + context)
        frames = start * subsampling, min(stop * subsampling, num_frames)
        samples = frames[0] * banks.hop, (frames[1] - 1) * banks.hop + banks.window
        own = (int(each * scale) for each in samples)
        features = compute(banks, read_audio(path, banks.rate, *own))
        yield Window(features, counted - start, min(counted + step, outputs) - start)
