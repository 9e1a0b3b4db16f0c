"""fairseq's binarised translation data (`data-bin`), read as it is.

A folder with `dict.LANG.txt` for both languages, and for each part `PART.SRC-TGT.LANG.bin` and
`.idx`, as `fairseq-preprocess` writes them (MMapIndexedDataset, its default).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clusterformer.data.bitext import NO_LIMITS, Limits
from clusterformer.data.named_sets import Split
from clusterformer.data.parallel import drop, warn_of_dropped
from clusterformer.data.text_form import TextForm
from clusterformer.data.tokenizers import (
    BOS_EOS,
    SPECIAL_TOKENS,
    UNK,
    SubwordTokenizer,
    Tokenizer,
)
from clusterformer.data.translation_batches import Reference, TranslationDataset
from clusterformer.data.translation_sources import TranslationSource, warn_no_test
from clusterformer.errors import InputError, reading
from clusterformer.models.embeddings import PAD

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQ")  # magic, version, code of the integer type, number of texts
_TYPES = {1: "u1", 2: "i1", 3: "i2", 4: "i4", 5: "i8", 8: "u2", 9: "u4", 10: "u8"}
_SPECIAL_IDS = [BOS_EOS, PAD, BOS_EOS, UNK]  # ours for fairseq's <s>, <pad>, </s> and <unk>
_PREPARED = ("moses", "tokenised", "lowercase", "split_hyphens", "vocab_size")
_UNKNOWN_REFERENCE = "\u2047"  # sentencepiece's; a model writes <unk>, which must match nothing


class FairseqText(Sequence[NDArray[np.integer]]):
    """Texts of one language in one split, as our token ids, each ended by BOS_EOS.

    Args:
        path: Path of the `.bin` and `.idx` files, without the ending.
        ids: Our token id for each of fairseq's.

    Attributes:
        lengths: Number of tokens of each text.
    """

    def __init__(self, path: Path, ids: NDArray[np.int64]) -> None:
        self._ids = ids
        index, tokens = (path.with_name(f"{path.name}.{ending}") for ending in ("idx", "bin"))
        for file in (index, tokens):
            if not file.is_file():
                raise InputError(f"{file}: no such file; fairseq-preprocess writes it")
        with reading(index, "an index of fairseq's mmap format; binarise with --dataset-impl mmap"):
            with index.open("rb") as stream:
                magic, version, code, count = _HEADER.unpack(stream.read(_HEADER.size))
            if (magic, version) != (_MAGIC, 1):
                raise ValueError(f"it begins with {magic!r}, version {version}")
        if code not in _TYPES or not count or index.stat().st_size != _HEADER.size + 12 * count:
            raise InputError(f"{index}: damaged: its size does not fit its {count:,} texts")
        after = _HEADER.size + 4 * count
        with reading(tokens, f"tokens of {_TYPES[code]}, as its index says"):
            self.lengths = np.memmap(index, "<i4", "r", _HEADER.size, (count,)).astype(np.int64)
            self._tokens = np.memmap(tokens, f"<{_TYPES[code]}", "r")
            offsets = np.memmap(index, "<i8", "r", after, (count,))
        self._starts = offsets // self._tokens.itemsize
        self._check(index, tokens, offsets)

    def _check(self, index: Path, tokens: Path, offsets: NDArray[np.integer]) -> None:
        """Compare every text with the bounds of the file, and every token with the dictionary."""
        total = len(self._tokens)
        # no sum that could overflow: a text begins in the file, and ends in it
        outside = (offsets < 0) | (self._starts >= total) | (self.lengths < 1)
        outside |= offsets % self._tokens.itemsize != 0
        outside |= self.lengths > total - self._starts
        if outside.any():
            text = int(outside.argmax())
            raise InputError(
                f"{index}: damaged: text {text + 1:,} of {len(self.lengths):,} has "
                f"{self.lengths[text]:,} tokens from byte {offsets[text]:,} of {tokens.name}, "
                f"which has {total:,} tokens; binarise again"
            )
        lowest, highest = int(self._tokens.min()), int(self._tokens.max())
        if lowest < 0 or highest >= len(self._ids):
            found = lowest if lowest < 0 else highest
            raise InputError(
                f"{tokens}: damaged: token {found:,}, allowed are 0 to {len(self._ids) - 1:,}, "
                "the words of its dictionary"
            )

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> NDArray[np.integer]:  # type: ignore[override]
        start = self._starts[index]
        return self._ids[self._tokens[start : start + self.lengths[index]]]

    def select(self, indices: list[int]) -> FairseqText:
        """Return some of the texts."""
        found = copy(self)
        found.lengths, found._starts = self.lengths[indices], self._starts[indices]
        return found


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
            first, second = self._split(stem)
            for pair in ((first, second), (second, first)):
                if all(given in (None, has) for given, has in zip(languages, pair, strict=True)):
                    return stem, pair
        wanted = "-".join(language or "*" for language in languages)
        raise InputError(
            f"{self.folder}: no files train.{wanted}.*.idx of fairseq-preprocess; "
            f"languages there: {', '.join(stems) or 'none'}"
        )

    def _split(self, stem: str) -> tuple[str, str]:
        """Split a pair such as zh-TW-en at the hyphen for which both languages have a file."""
        parts = stem.split("-")
        pairs = [("-".join(parts[:at]), "-".join(parts[at:])) for at in range(1, len(parts))]
        files = {path.name for path in self.folder.glob(f"train.{stem}.*.idx")}
        return max(
            pairs, key=lambda pair: sum(f"train.{stem}.{side}.idx" in files for side in pair)
        )


def _dictionary(path: Path) -> list[str]:
    """Read the words of a dictionary in the order of their ids."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; fairseq-preprocess writes it")
    with reading(path, "a dictionary of fairseq in UTF-8"):
        lines = path.read_text(encoding="utf-8").split("\n")
    words = []
    for number, line in enumerate(lines, 1):
        word, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if line and not (word and count.isdecimal()):
            raise InputError(f"{path}:{number}: {line!r}, allowed is a word and its count")
        if line:
            words.append(word)
    if sum(word.startswith("\u2581") for word in words) > len(words) / 10:
        raise InputError(
            f"{path}: pieces of sentencepiece; only byte pairs of subword-nmt, with @@, are joined "
            "to words, so a score would be one of pieces"
        )
    return words


def refuse_ignored(given: Sequence[object], limits: Limits, default: Limits) -> None:
    """Refuse what the data, prepared as they are, cannot follow.

    Args:
        given: Whether each option of `_PREPARED` is given.
        limits: Conditions on a training pair.
        default: Those of a user who says nothing of them.

    Raises:
        InputError: with the options to leave out, or with what limits need.
    """
    refused = [option for option, value in zip(_PREPARED, given, strict=True) if value]
    if refused:
        raise InputError(f"data_bin holds texts that are prepared; leave out {', '.join(refused)}")
    if limits.unit == "words" and limits not in (default, NO_LIMITS):
        raise InputError("limits of data_bin count subwords; set data.limit_unit to subwords")


class FairseqSource(TranslationSource):
    """Pairs that fairseq-preprocess binarised, in its subwords.

    Args:
        folder: The `data-bin` folder.
        languages: Source and target language; None for the one that is found.
        limits: Conditions on a training pair; those of words do not apply.
    """

    detokenises = False

    def __init__(
        self, folder: str, languages: tuple[str | None, str | None], limits: Limits
    ) -> None:
        self._path, self._languages, self._limits = folder, languages, limits
        self.source_form = self.target_form = TextForm()

    @cached_property
    def _folder(self) -> FairseqFolder:
        return FairseqFolder(self._path, self._languages)

    def learn_tokenizer(self) -> Tokenizer:
        return SubwordTokenizer(self._folder.words)

    def training_pairs(self, tokenizer: Tokenizer) -> TranslationDataset:
        return self.evaluation_pairs("train", tokenizer, 0)

    def evaluation_pairs(
        self, split: Split, tokenizer: Tokenizer, num_references: int | None
    ) -> TranslationDataset:
        if tokenizer.state() != self.learn_tokenizer().state():
            raise InputError(
                f"{self._folder.folder}: its dictionaries are not those of the checkpoint"
            )
        part = self._folder.part(split)
        if part is None and split == "test":
            warn_no_test()
            part = self._folder.part("valid")
        if part is None:
            raise InputError(f"{self._folder.folder}: no {split} part in it")
        if split != "test" and self._limits.unit == "subwords":
            part = self._fit(*part, split)
        sources, targets = part
        scored = range(len(targets))[:num_references]
        texts = [_reference(tokenizer.decode(targets[index])) for index in scored]
        return TranslationDataset(sources, targets, [Reference(text, text) for text in texts])

    def _fit(
        self, sources: FairseqText, targets: FairseqText, split: Split
    ) -> tuple[FairseqText, FairseqText]:
        """Select the pairs within the limits; the end of a text is no subword."""
        folder = self._folder.folder
        dropped: Counter[str] = Counter()
        kept = []
        sizes = zip((sources.lengths - 1).tolist(), (targets.lengths - 1).tolist(), strict=True)
        for index, pair in enumerate(sizes):
            violation = self._limits.excess(pair) if min(pair) else "empty side"
            if violation is None:
                kept.append(index)
            else:
                drop(violation, f"{folder}: {split} pair {index + 1:,}", self._limits, dropped)
        warn_of_dropped(folder, dropped, f"{split} pairs")
        if not kept:
            raise InputError(f"{folder}: no {split} pair is within the limits")
        return sources.select(kept), targets.select(kept)


def _reference(text: str) -> str:
    return text.replace(SPECIAL_TOKENS[UNK], _UNKNOWN_REFERENCE)
