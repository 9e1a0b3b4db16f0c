"""Parallel text: two files, or two columns of one, in which line n translates line n.

Read as a stream, so that the length of a file costs no memory.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from clusterformer.errors import InputError


class Pair(NamedTuple):
    """A sentence, its translation, and where they stand (line from 1)."""

    source: str
    target: str
    line: int


@dataclass(frozen=True)
class Bitext:
    """Where the pairs of one part of a data set lie; iterate over it to read them.

    Attributes:
        source: File of the sentences, UTF-8, one a line; compressed if its name ends in `.gz`.
        target: File of their translations; the same file where it is a TSV.
        columns: TSV: columns of source and target, from 0.
        counts: Numbers of pairs it may have; empty for any.
    """

    source: Path
    target: Path
    columns: tuple[int, int] | None = None
    counts: tuple[int, ...] = ()

    @property
    def files(self) -> list[Path]:
        """The files it is read from."""
        return list(dict.fromkeys([self.source, self.target]))

    def __iter__(self) -> Iterator[Pair]:
        """Read every pair.

        Raises:
            InputError: if a file is missing, not UTF-8, mixes line ends, or has another number
                of lines than it should have.
        """
        number = 0
        for pair in self._from_columns() if self.columns else self._from_files():
            number = pair.line
            yield pair
        if not number:
            raise InputError(f"{self.source}: no pairs in it")
        if self.counts and number not in self.counts:
            expected = " or ".join(f"{count:,}" for count in self.counts)
            raise InputError(
                f"{self.source}: {number:,} pairs, expected {expected}; the data set is changed"
            )

    def _from_files(self) -> Iterator[Pair]:
        sources, targets = read_lines(self.source), read_lines(self.target)
        for number, source in enumerate(sources, 1):
            target = next(targets, None)
            if target is None:
                raise self._unequal(number + sum(1 for _ in sources), number - 1)
            yield Pair(source, target, number)
        rest = sum(1 for _ in targets)
        if rest:
            raise self._unequal(number, number + rest)

    def _from_columns(self) -> Iterator[Pair]:
        assert self.columns is not None
        for number, line in enumerate(read_lines(self.source), 1):
            fields = line.split("\t")
            if len(fields) <= max(self.columns):
                raise InputError(
                    f"{self.source}:{number}: {len(fields)} columns, "
                    f"expected {max(self.columns) + 1} or more"
                )
            yield Pair(fields[self.columns[0]], fields[self.columns[1]], number)

    def _unequal(self, sources: int, targets: int) -> InputError:
        return InputError(
            f"{self.source} has {sources:,} lines, {self.target} has {targets:,}; "
            "parallel files need as many"
        )


def read_lines(path: Path) -> Iterator[str]:
    r"""Lines of a UTF-8 file, without their ends: all LF or all CR LF, never both, and no bare CR.

    A line ends nowhere else: what Unicode takes for a separator stays in the text.
    """
    try:
        with _open(path) as file:
            crlf = None
            for number, raw in enumerate(file, 1):
                line = raw.removesuffix(b"\n")
                if crlf is None:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                    crlf = line.endswith(b"\r")
                if (crlf != line.endswith(b"\r") and raw.endswith(b"\n")) or b"\r" in line[:-1]:
                    raise InputError(
                        f"{path}:{number}: mixed line ends; convert the file to LF (dos2unix)"
                    )
                yield _decoded(line.removesuffix(b"\r"), path, number)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None


def _open(path: Path) -> BinaryIO | gzip.GzipFile:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _decoded(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        found = line[error.start : error.end].hex(" ")
        raise InputError(
            f"{path}:{number}: bytes {found} are not UTF-8; convert the file"
        ) from None
