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
_HEADER = struct.Struct("<9sQBQ")  # magic, version, code of the integer type, number of texts
_TYPES = {1: "u1", 2: "i1", 3: "i2", 4: "i4", 5: "i8", 8: "u2", 9: "u4", 10: "u8"}
_SPECIAL_IDS = [BOS_EOS, PAD, BOS_EOS, UNK]  # ours for fairseq's <s>, <pad>, </s> and <unk>


class FairseqText(Sequence[NDArray[np.integer]]):
    """Texts of one language in one split, as our token ids, each ended by BOS_EOS.

    Args:
        path: Path of the `.bin` and `.idx` files, without the ending.
        ids: Our token id for each of fairseq's.
    """

    def __init__(self, path: Path, ids: NDArray[np.int64]) -> None:
        self._ids = ids
        index, tokens = (path.with_name(f"{path.name}.{ending}") for ending in ("idx", "bin"))
        for file in (index, tokens):
            if not file.is_file():
                raise InputError(f"{file}: no such file; fairseq-preprocess writes it")
        with index.open("rb") as stream:
            head = stream.read(_HEADER.size)
        if len(head) < _HEADER.size or not head.startswith(_MAGIC):
            raise InputError(
                f"{index}: not an index of fairseq's mmap format; binarise with --dataset-impl mmap"
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
        return self._ids[self._tokens[start : start + self.lengths[index]]]


class FairseqFolder:
    """A `data-bin` folder.

    Args:
        folder: Path of the folder.
        languages: Source and target language; None for the one that the file names tell.

    Attributes:
        languages: Source and target language.
        words: Words of both dictionaries together; their ids begin after BOS_EOS.
    """

    def __init__(self, folder: str | Path, languages: tuple[str | None, str | None]) -> None:
        self.folder = Path(folder).expanduser()
        self._stem, self.languages = self._direction(languages)
        sides = [_dictionary(self.folder / f"dict.{language}.txt") for language in self.languages]
        self.words = list(dict.fromkeys(word for side in sides for word in side))
        ids = {word: i for i, word in enumerate(self.words, BOS_EOS + 1)}
        self._ids = [
            np.array([*_SPECIAL_IDS, *(ids[word] for word in side)], dtype=np.int64)
            for side in sides
        ]

    def part(self, split: str) -> tuple[FairseqText, FairseqText] | None:
        """Open sources and targets of "train", "valid" or "test"; None if there is no such part."""
        paths = [self.folder / f"{split}.{self._stem}.{language}" for language in self.languages]
        if not any(path.with_name(f"{path.name}.idx").exists() for path in paths):
            return None
        sources, targets = (
            FairseqText(path, ids) for path, ids in zip(paths, self._ids, strict=True)
        )
        if len(sources) != len(targets):
            raise InputError(
                f"{paths[0]} has {len(sources):,} texts, {paths[1]} has {len(targets):,}"
            )
        return sources, targets

    def _direction(self, languages: tuple[str | None, str | None]) -> tuple[str, tuple[str, str]]:
        """Find the pair of languages in the file names, such as de-en, and source and target."""
        stems = sorted({path.name.split(".")[1] for path in self.folder.glob("train.*-*.*.idx")})
        for stem in stems:
            first, second = stem.split("-", 1)
            for pair in ((first, second), (second, first)):
                if all(given in (None, has) for given, has in zip(languages, pair, strict=True)):
                    return stem, pair
        wanted = "-".join(language or "*" for language in languages)
        raise InputError(
            f"{self.folder}: no files train.{wanted}.*.idx of fairseq-preprocess; "
            f"languages there: {', '.join(stems) or 'none'}"
        )


def _dictionary(path: Path) -> list[str]:
    """Read the words of a dictionary in the order of their ids."""
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
