"""Texts of any size, read piece by piece: a file larger than memory needs a few megabytes of it."""

from __future__ import annotations

import codecs
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from clusterformer.errors import InputError, reading

_SIZE = 1 << 20  # bytes read at once


def open_bytes(path: Path) -> BinaryIO | gzip.GzipFile:
    """Open a file to read bytes, through gzip if its name ends in `.gz`."""
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def text_pieces(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the text of a file in pieces of about a megabyte; all but the last end at a line end.

    Their sum is what `read_text` returns: through gzip if the name ends in `.gz`, without a byte
    order mark.

    Raises:
        InputError: if the file is missing, damaged, or not in `encoding` (with the line).
    """
    with reading(path, f"text in {encoding}"):
        waiting: list[str] = []
        for text in _decoded(path, encoding):
            cut = text.rfind("\n") + 1
            if cut:
                yield "".join([*waiting, text[:cut]])
                waiting = []
            waiting.append(text[cut:])
        if any(waiting):
            yield "".join(waiting)


@contextmanager
def decoding(path: Path, encoding: str | None, line: int = 1) -> Iterator[None]:
    """Name the line at which a file is not in its encoding.

    Args:
        path: The file.
        encoding: Encoding of the file; None for UTF-8, where no option names another.
        line: Number of the line with which the bytes begin.

    Raises:
        InputError: with the bytes there, or for an encoding that Python does not know.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        line += error.object.count(b"\n", 0, error.start)
        found = error.object[error.start : min(error.end, error.start + 8)].hex(" ")
        advice = "convert the file" if encoding is None else "convert the file or set encoding"
        raise InputError(
            f"{path}:{line}: bytes {found} are not {encoding or 'utf-8'}; {advice}"
        ) from None
    except LookupError:
        raise InputError(
            f"unknown encoding {encoding!r}, allowed are Python's, such as utf-8 and cp1252"
        ) from None


def _decoded(path: Path, encoding: str) -> Iterator[str]:
    with decoding(path, encoding):
        decoder = codecs.getincrementaldecoder(encoding)()
    line, first = 1, True
    with open_bytes(path) as file:
        while True:
            content = file.read(_SIZE)
            with decoding(path, encoding, line):
                text = decoder.decode(content, final=not content)
            text.encode()  # some encodings can spell half a character
            if text:
                yield text.removeprefix("\ufeff") if first else text
                first = False
            line += text.count("\n")
            if not content:
                return
