"""WAV files that were written to a pipe: their sizes are 0, or nearly 2^31 or 2^32: unknown."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import IO, cast

_UNKNOWN_SIZE = 0x7FFF0000  # bytes; ffmpeg and sox put some such number, or more
_LARGEST = 2**32 - 1


@contextmanager
def open_wav(path: Path) -> Iterator[IO[bytes]]:
    """Open a WAV file; one without its sizes reads as if it had those up to its end."""
    with path.open("rb") as file:
        offset = _offset_of_unsized_samples(file)
        file.seek(0)
        if offset is None:
            yield file
            return
        with mmap(file.fileno(), 0, access=ACCESS_COPY) as copy:
            for start in (8, offset):  # the size stands before what it counts
                size = min(len(copy) - start, _LARGEST)
                copy[start - 4 : start] = size.to_bytes(4, "little")
            yield cast(IO[bytes], copy)


def _offset_of_unsized_samples(file: IO[bytes]) -> int | None:
    """Find where the samples start, in bytes; None for a file with sizes, or no WAV file."""
    length = file.seek(0, os.SEEK_END)
    file.seek(0)
    name, whole = _chunk(file)
    if name != b"RIFF":
        return None
    offset = 12
    while True:
        file.seek(offset)
        name, size = _chunk(file)
        offset += 8
        if offset > length:  # cut within this header
            return None
        if name == b"data":
            break
        offset += size + size % 2
    # an empty recording has a size of 0, too, but then the size of the whole file is right
    unsized = size >= _UNKNOWN_SIZE or (not size and whole + 8 != length) or not whole
    return offset if unsized else None


def _chunk(file: IO[bytes]) -> tuple[bytes, int]:
    """Read name and size of a chunk."""
    return file.read(4), int.from_bytes(file.read(4), "little")
