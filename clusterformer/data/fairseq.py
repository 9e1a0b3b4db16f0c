"""fairseq's binarised translation data (`data-bin`), read as it is.

A folder with `dict.LANG.txt` for both languages, and for each part `PART.SRC-TGT.LANG.bin` and
`.idx`, as `fairseq-preprocess` writes them (MMapIndexedDataset, its default).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clusterformer.data.batches import PAD
from clusterformer.data.tokenizers import BOS_EOS, UNK
from clusterformer.errors import InputError

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQ")  # magic, version, code of the number type, texts
_TYPES = {1: "u1", 2: "i1", 3: "i2", 4: "i4", 5: "i8", 8: "u2", 9: "u4", 10: "u8"}
_SPECIAL = [BOS_EOS, PAD, BOS_EOS, UNK]  # what fairseq's <s>, <pad>, </s> and <unk> are to us


class FairseqText(Sequence[NDArray[np.integer]]):
    """The texts of one language in one part, as our token numbers, ended by BOS_EOS.

    Args:
        path: Of `.bin` and `.idx`, without the ending.
        numbers: Our number for each of fairseq's.
    """

    def __init__(self, path: Path, numbers: NDArray[np.int64]) -> None:
        self._numbers = numbers
        index, tokens = (path.with_name(f"{path.name}.{ending}") for ending in ("idx", "bin"))
        for file in (index, tokens):
            if not file.is_file():
                raise InputError(f"{file}: no such file; fairseq-preprocess writes it")
        with index.open("rb") as stream:
            head = stream.read(_HEADER.size)
        if len(head) < _HEADER.size or not head.startswith(_MAGIC):
            raise InputError(
                f"{index}: no index of fairseq's mmap format; binarise with --dataset-impl mmap"
            )
        _, _, code, count = _HEADER.unpack(head)
        if code not in _TYPES or not count or index.stat().st_size != _HEADER.size + 12 * count:
            raise InputError(f"{index}: damaged: its size does not fit its {count:,} texts")
        after = _HEADER.size + 4 * count
        self.lengths = np.memmap(index, "<i4", "r", _HEADER.size, (count,)).astype(np.int64)
        self._tokens = np.memmap(tokens, f"<{_TYPES[code]}", "r")
        self._starts = np.memmap(index, "<i8", "r", after, (count,)) // self._tokens.itemsize
        if self._starts[-1] + self.lengths[-1] > len(self._tokens):
            raise InputError(f"{tokens}: cut short: {len(self._tokens):,} tokens")

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> NDArray[np.integer]:  # type: ignore[override]
        start = self._starts[index]
        return self._numbers[self._tokens[start : start + self.lengths[index]]]


class FairseqFolder:
    """A `data-bin` folder.

    Args:
        folder: Path of it.
        languages: Source and target; a None is found out from the names of the files.

    Attributes:
        languages: Source and target.
        words: Of both dictionaries together; their numbers begin after BOS_EOS.
    """

    def __init__(self, folder: str | Path, languages: tuple[str | None, str | None]) -> None:
        self.folder = Path(folder).expanduser()
        self._stem, self.languages = self._direction(languages)
        sides = [_dictionary(self.folder / f"dict.{language}.txt") for language in self.languages]
        self.words = list(dict.fromkeys(word for side in sides for word in side))
        places = {word: place for place, word in enumerate(self.words, BOS_EOS + 1)}
        self._numbers = [
            np.array([*_SPECIAL, *(places[word] for word in side)], dtype=np.int64)
            for side in sides
        ]

    def part(self, split: str) -> tuple[FairseqText, FairseqText] | None:
        """Sources and targets of "train", "valid" or "test"; None if there is no such part."""
        paths = [self.folder / f"{split}.{self._stem}.{language}" for language in self.languages]
        if not any(path.with_name(f"{path.name}.idx").exists() for path in paths):
            return None
        sources, targets = (
            FairseqText(path, numbers) for path, numbers in zip(paths, self._numbers, strict=True)
        )
        if len(sources) != len(targets):
            raise InputError(
                f"{paths[0]} has {len(sources):,} texts, {paths[1]} has {len(targets):,}"
            )
        return sources, targets

    def _direction(self, languages: tuple[str | None, str | None]) -> tuple[str, tuple[str, str]]:
        """How the files of the pair of languages are named, and source and target."""
        found = sorted({path.name.split(".")[1] for path in self.folder.glob("train.*-*.*.idx")})
        for stem in found:
            first, second = stem.split("-", 1)
            for pair in ((first, second), (second, first)):
                if all(asked in (None, had) for asked, had in zip(languages, pair, strict=True)):
                    return stem, pair
        wanted = "-".join(language or "*" for language in languages)
        raise InputError(
            f"{self.folder}: no files train.{wanted}.*.idx of fairseq-preprocess; "
            f"languages there: {', '.join(found) or 'none'}"
        )


def _dictionary(path: Path) -> list[str]:
    """The words of a dictionary in the order of their numbers."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; fairseq-preprocess writes it") from None
    words = []
    for number, line in enumerate(lines, 1):
        word, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if line and not (word and count.isdecimal()):
            raise InputError(f"{path}:{number}: {line!r}, allowed is a word and its count")
        if line:
            words.append(word)
    return words
