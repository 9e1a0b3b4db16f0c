"""Parallel text on disk: line n of one file, or column of a table, translates line n of another.

Files are read as a stream, so that their length costs no memory.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from clusterformer.data.holding_out import plain_words
from clusterformer.data.named_sets import Split, check_count
from clusterformer.data.text_pieces import open_bytes
from clusterformer.errors import InputError

MAX_HELD_OUT = 2000
"""Maximum number of pairs held out of training for validation."""


class SentencePair(NamedTuple):
    """A sentence, its translation, and the number of their line, from 1."""

    source: str
    target: str
    line: int


@dataclass(frozen=True)
class Limits:
    """Conditions on a training pair.

    Attributes:
        max_length: Maximum number of words a side; None for no limit.
        max_ratio: Maximum ratio of the sides' numbers of words; None for no limit.
        unfit: Treatment of other pairs, and of those with an empty side.
        unit: What is counted: "words", or "subwords", of validation pairs too.
    """

    max_length: int | None = None
    max_ratio: float | None = None
    unfit: Literal["drop", "error"] = "drop"
    unit: Literal["words", "subwords"] = "words"

    def violation(self, source: str, target: str) -> str | None:
        """Name the condition that the words of a pair violate; None if there is none."""
        sizes = len(source.split()), len(target.split())
        if not min(sizes):
            return "empty side"
        return self.excess(sizes) if self.unit == "words" else None

    def excess(self, sizes: tuple[int, int]) -> str | None:
        """Name the condition that the sizes of both sides violate; None if there is none."""
        shorter, longer = sorted(sizes)
        if self.max_length is not None and longer > self.max_length:
            return f"more than max_length {self.max_length} {self.unit}"
        if self.max_ratio is not None and longer > self.max_ratio * shorter:
            return f"length ratio above max_ratio {self.max_ratio}"
        return None


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Bitext:
    """Files of the pairs of one split; iterate over it to read them.

    Attributes:
        source: File of the sentences, UTF-8, one a line; compressed if its name ends in `.gz`.
        target: File of their translations; the same file where it is a TSV.
        columns: TSV: columns of source and target, from 0.
        counts: Numbers of pairs allowed; empty for any.
        held_out: Keys of the sentences held out of training, with their translations.
        part: "all" pairs, those "held out", or the "rest".
    """

    source: Path
    target: Path
    columns: tuple[int, int] | None = None
    counts: tuple[int, ...] = ()
    held_out: frozenset[int] = frozenset()
    part: Literal["all", "held out", "rest"] = "all"

    @property
    def files(self) -> list[Path]:
        """Files of the pairs, each once."""
        return list(dict.fromkeys([self.source, self.target]))

    def __iter__(self) -> Iterator[SentencePair]:
        """Read every pair.

        Raises:
            InputError: if a file is missing, is not UTF-8, mixes line ends, or has another number
                of lines than it should have.
        """
        number, wanted = 0, self.part == "held out"
        for pair in self._from_columns() if self.columns else self._from_files():
            number = pair.line
            if self.part == "all" or (_key(pair.source) in self.held_out) == wanted:
                yield pair
        if not number:
            raise InputError(f"{self.source}: no pairs in it")
        if self.counts:
            check_count(self.source, "pairs", number, *self.counts)

    def hold_out(self) -> tuple[Bitext, Bitext]:
        """Split the pairs for training without a validation file.

        About a tenth of the different sources, in equal steps through them, until their pairs are
        `MAX_HELD_OUT`. Pairs with the same source stay together, so that no source of one part
        occurs in the other; case, punctuation and spaces do not count. A frequent source is held
        out no sooner than a rare one, and not at all with more pairs than that.

        Returns:
            The rest and the pairs held out.

        Raises:
            InputError: as iteration does, or if there are too few pairs.
        """
        found = (_key(pair.source) for pair in self if pair.source.strip() and pair.target.strip())
        keys, firsts, counts = np.unique(
            np.fromiter(found, np.uint64), return_index=True, return_counts=True
        )
        order = np.argsort(firsts)
        order = order[counts[order] <= MAX_HELD_OUT]
        step = max(1, min(len(order), max(10, -(-counts.sum() // MAX_HELD_OUT))))
        drawn = order[step - 1 :: step]
        drawn = drawn[counts[drawn].cumsum() <= MAX_HELD_OUT]
        held_out = frozenset(keys[drawn].tolist())
        rest = replace(self, held_out=held_out, part="rest")
        if not held_out or next(iter(rest), None) is None:
            raise InputError(
                f"{self.source}: too few different sentences to hold some out for validation; "
                "set data.valid_source and data.valid_target"
            )
        return rest, replace(rest, part="held out")

    def _from_files(self) -> Iterator[SentencePair]:
        sources, targets = read_lines(self.source), read_lines(self.target)
        number = 0
        for number, source in enumerate(sources, 1):
            target = next(targets, None)
            if target is None:
                raise self._unequal(number + sum(1 for _ in sources), number - 1)
            yield SentencePair(source, target, number)
        rest = sum(1 for _ in targets)
        if rest:
            raise self._unequal(number, number + rest)

    def _from_columns(self) -> Iterator[SentencePair]:
        assert self.columns is not None
        for number, line in enumerate(read_lines(self.source), 1):
            fields = line.split("\t")
            if len(fields) <= max(self.columns):
                raise InputError(
                    f"{self.source}:{number}: {len(fields)} columns, "
                    f"expected {max(self.columns) + 1} or more"
                )
            yield SentencePair(fields[self.columns[0]], fields[self.columns[1]], number)

    def _unequal(self, sources: int, targets: int) -> InputError:
        return InputError(
            f"{self.source} has {sources:,} lines, {self.target} has {targets:,}; "
            "parallel files need the same number"
        )


def own_bitexts(files: Mapping[Split, tuple[str | None, str | None]]) -> dict[Split, Bitext]:
    """Name the pairs in the user's own files, for each part that has such files.

    Args:
        files: Path of the sentences and path of their translations for each part; None where there
            is no such file.

    Raises:
        InputError: if one file of a pair is missing, or training files where there are others.
    """
    found: dict[Split, Bitext] = {}
    for split, (source, target) in files.items():
        if source is not None and target is not None:
            found[split] = Bitext(Path(source).expanduser(), Path(target).expanduser())
        elif split == "train" or source or target:
            raise InputError(f"own files need both {split}_source and {split}_target")
    return found


def _key(sentence: str) -> int:
    """Number that sentences share which are the same without case, punctuation and spaces."""
    words = plain_words(sentence.strip()).encode()
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big")


def read_lines(path: Path) -> Iterator[str]:
    r"""Yield the lines of a UTF-8 file, without their ends.

    The ends are all LF or all CR LF, never both, and there is no bare CR. Other separators of
    Unicode stay in the text.

    Raises:
        InputError: if the file is missing, damaged, not UTF-8, or mixes line ends.
    """
    try:
        with open_bytes(path) as file:
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


def _decoded(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        found = line[error.start : error.end].hex(" ")
        raise InputError(
            f"{path}:{number}: bytes {found} are not UTF-8; convert the file"
        ) from None
