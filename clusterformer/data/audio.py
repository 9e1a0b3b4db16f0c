"""Recordings as samples: WAV by the standard library, other formats by soundfile.

S samples
"""

from __future__ import annotations

import math
import wave
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clusterformer.data.piped_wav import open_wav
from clusterformer.errors import InputError, missing, reading

Samples = NDArray[np.float32]
"""Samples (S,) of one channel, from -1 to 1."""

_FULL_SCALE = 0.99  # in 8 bits the largest positive sample is 127 / 128
_RATES = 1000, 768_000  # hertz; a header with another one is damaged
_UNKNOWN_LENGTH = 2**63 - 1  # samples; soundfile's, of a FLAC that was written to a pipe
_BLOCK = 4096  # samples that soundfile decodes at once, as many as a block of FLAC
_CLIPPED_SHARE = 1e-3  # of the samples; single peaks at full scale are no clipping


class AudioHeader(NamedTuple):
    """Length of a recording in samples of its own rate, and that rate in hertz.

    A file that was cut short has fewer samples.
    """

    num_samples: int
    rate: int


def expanded(path: str | Path) -> Path:
    """Put the home directory in the place of `~`.

    Raises:
        InputError: if the user named behind it has none.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(f"{path}: no such recording, and no such user") from None


def read_header(path: Path) -> AudioHeader:
    """Read length and rate of a recording.

    Raises:
        InputError: if the file is missing, no recording, or of a format that needs soundfile.
    """
    if _is_plain_wav(path):
        with reading(path, "a WAV file"), open_wav(path) as opened, wave.open(opened, "rb") as file:
            header = AudioHeader(file.getnframes(), file.getframerate())
    else:
        library = _soundfile(path)
        with reading(path, "a recording"):
            info = library.info(str(path))
        count = info.frames
        if count == _UNKNOWN_LENGTH:
            count = sum(map(len, _blocks(path, 0, None)))
        header = AudioHeader(count, info.samplerate)
    low, high = _RATES
    if not low <= header.rate <= high:
        raise InputError(f"{path}: a rate of {header.rate} Hz, allowed are {low} to {high}")
    return header


def read_audio(path: Path, rate: int, start: int = 0, stop: int | None = None) -> Samples:
    """Read a recording, or a part of it, as one channel at `rate` hertz.

    Args:
        path: WAV file; with soundfile also FLAC and whatever else that reads.
        rate: Wanted rate, hertz; a recording of another rate is resampled.
        start: First sample to read, at the recording's own rate.
        stop: Sample before which to stop, likewise; None for the end.

    Returns:
        Samples (S,); fewer than the header says if the file is cut short.

    Raises:
        InputError: as `read_header`, and for samples that are no finite numbers.
    """
    if _is_plain_wav(path):
        with open_wav(path) as file:
            samples, own_rate = read_wav(file, path, start, stop)
    else:
        samples, own_rate = _read_other(path, start, stop)
    if not np.isfinite(samples).all():
        raise InputError(f"{path}: samples that are no finite numbers")
    return resample(samples, Fraction(rate, own_rate))


def read_wav(
    file: IO[bytes], name: Path | str, start: int = 0, stop: int | None = None
) -> tuple[Samples, int]:
    """Read a WAV file of 8, 16, 24 or 32 bits; channels are averaged.

    Returns:
        Samples (S,), and the rate in hertz.
    """
    with reading(name, "a WAV file"), wave.open(file, "rb") as opened:
        count = opened.getnframes()
        start = min(start, count)
        opened.setpos(start)
        data = opened.readframes((count if stop is None else min(stop, count)) - start)
        channels, width, rate = opened.getnchannels(), opened.getsampwidth(), opened.getframerate()
    data = data[: len(data) // (channels * width) * channels * width]
    if width == 3:  # to the upper bytes of 32 bits
        wide = np.zeros((len(data) // 3, 4), dtype=np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        values, width = wide.reshape(-1).view("<i4"), 4
    else:
        values = np.frombuffer(data, {1: "u1", 2: "<i2", 4: "<i4"}[width])
    scaled = values.astype(np.float32) / 2.0 ** (8 * width - 1) - (1.0 if width == 1 else 0.0)
    return scaled.reshape(-1, channels).mean(1), rate


def resample(samples: Samples, factor: Fraction) -> Samples:
    """Change the number of samples by a factor, with scipy's polyphase filter.

    Args:
        samples: (S,).
        factor: New rate over old rate.

    Returns:
        (`resampled_length(S, factor)`,).
    """
    if factor == 1 or not len(samples):
        return samples
    try:
        from scipy.signal import resample_poly
    except ImportError:
        raise missing("resampling needs scipy", "speech") from None
    resampled: Samples = resample_poly(samples, factor.numerator, factor.denominator)
    return resampled.astype(np.float32)


def resampled_length(num_samples: int, factor: Fraction) -> int:
    """Return the number of samples that `resample` gives."""
    return math.ceil(num_samples * factor)


def is_clipped(samples: Samples) -> bool:
    """Tell whether more than a thousandth of the samples are at full scale: the peaks are lost."""
    return bool((np.abs(samples) >= _FULL_SCALE).mean() > _CLIPPED_SHARE) if len(samples) else False


def _read_other(path: Path, start: int, stop: int | None) -> tuple[Samples, int]:
    """Read by soundfile, up to where a damaged file can no longer be decoded."""
    with reading(path, "a recording"):
        rate = _soundfile(path).info(str(path)).samplerate
    return np.concatenate([np.zeros(0, np.float32), *_blocks(path, start, stop)]), rate


def _blocks(path: Path, start: int, stop: int | None) -> Iterator[Samples]:
    """Yield what `_read_other` reads, in blocks."""
    library = _soundfile(path)
    with reading(path, "a recording"), library.SoundFile(str(path)) as file:
        left = (file.frames if stop is None else min(stop, file.frames)) - start
        try:
            if start:
                file.seek(min(start, file.frames))
        except library.LibsndfileError:
            return
        while left > 0:
            block = np.full((min(left, _BLOCK), file.channels), np.nan, np.float32)
            try:
                found = file.read(out=block)
                left = left - len(found) if len(found) else 0
            except library.LibsndfileError:  # what was decoded is kept
                found, left = block[~np.isnan(block).any(1)], 0
            yield found.mean(1)


def _is_plain_wav(path: Path) -> bool:
    """Tell whether the standard library reads a file; soundfile may read what it does not."""
    with reading(path, "a recording"):
        if not path.is_file():
            raise InputError(f"{path}: no such recording")
        with path.open("rb") as opened:
            start = opened.read(4)
    if path.suffix.lower() not in (".wav", ".wave") or start in (b"RF64", b"RIFX"):
        return False
    try:
        with open_wav(path) as whole, wave.open(whole) as file:
            bits = 8 * file.getsampwidth()
    except (wave.Error, EOFError) as error:
        # floating-point numbers, or compressed; from Python 3.12 on also "unknown extended format"
        if str(error).startswith("unknown"):
            return False
        message = str(error) or "it ends before its header does"
        raise InputError(f"{path}: not a WAV file: {message}") from error
    if bits > 32:
        raise InputError(f"{path}: samples of {bits} bits, allowed are 8, 16, 24 and 32")
    return True


def _soundfile(path: Path) -> Any:
    try:
        import soundfile
    except ImportError:
        need = f"{path}: neither a plain WAV file of whole numbers nor readable without soundfile"
        raise missing(need, "speech") from None
    return soundfile
