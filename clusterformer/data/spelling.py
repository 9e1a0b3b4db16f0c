"""Running text to token numbers and back, nothing lost: bytes, byte pairs or words.

Unlike the pieces of `text.py`, which are read and done with, each token here spells some bytes, so
that a language model's text can be measured in bytes and written out again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from clusterformer.data.batches import PAD
from clusterformer.data.tokenizers import tokenizers_library

TEXT = PAD + 1
"""Stands before every text; no text can spell it."""

LINE_END = "<eos>"
"""The word that a line end is, as in WikiText."""

_UNKNOWN = "<unk>"

Spelling = Literal["bytes", "bpe", "word"]


class Speller(ABC):
    """Numbers the pieces of running text; number 0 is padding, 1 begins a text.

    Attributes:
        spellings: Bytes of UTF-8 that each token stands for; none for 0 and 1. A character may be
            spread over several tokens.
    """

    spellings: list[bytes]

    @property
    def vocab_size(self) -> int:
        """One more than the highest number."""
        return len(self.spellings)

    @abstractmethod
    def encode(self, text: str) -> NDArray[np.integer]:
        """Numbers of the pieces of `text`, without `TEXT` before them."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Plain values from which `restore` makes the same speller."""


def restore(state: dict[str, Any]) -> Speller:
    """Make the speller whose `state()` this is."""
    kinds: dict[str, type[Speller]] = {
        "bytes": ByteSpeller,
        "bpe": BytePairSpeller,
        "word": WordSpeller,
    }
    options = dict(state)
    return kinds[options.pop("kind")](**options)


class ByteSpeller(Speller):
    """Bytes of UTF-8: 256 tokens, nothing to learn, no text unknown."""

    def __init__(self) -> None:
        self.spellings = [b"", b"", *(bytes([byte]) for byte in range(256))]

    def encode(self, text: str) -> NDArray[np.integer]:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16) + (TEXT + 1)

    def state(self) -> dict[str, Any]:
        return {"kind": "bytes"}


class BytePairSpeller(Speller):
    """Byte-pair encoding on bytes within lines, by the `tokenizers` library: no text is unknown.

    Args:
        json: The library's own description of a tokenizer.
    """

    def __init__(self, json: str) -> None:
        self._bpe = tokenizers_library().Tokenizer.from_str(json)
        self._bpe.encode_special_tokens = True  # "<text>" in a text is six letters like any other
        byte_of = {letter: byte for byte, letter in enumerate(_letters())}
        numbered = sorted((number, piece) for piece, number in self._bpe.get_vocab().items())
        self.spellings = [
            bytes(byte_of[letter] for letter in piece) if number > TEXT else b""
            for number, piece in numbered
        ]

    @classmethod
    def train(cls, texts: Iterable[str], *, vocab_size: int) -> BytePairSpeller:
        """Learn `vocab_size` pieces, single bytes included, from `texts`."""
        library = tokenizers_library()
        bpe = library.Tokenizer(library.models.BPE())
        bpe.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=["<pad>", "<text>"],
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        bpe.train_from_iterator((line for text in texts for line in _lines(text)), trainer)
        return cls(bpe.to_str())

    def encode(self, text: str) -> NDArray[np.integer]:
        lines = _lines(text)
        numbers: list[NDArray[np.integer]] = []
        while chunk := list(islice(lines, 10_000)):
            numbers += [np.asarray(line.ids) for line in self._bpe.encode_batch_fast(chunk)]
        return np.concatenate(numbers) if numbers else np.empty(0, dtype=np.int64)

    def state(self) -> dict[str, Any]:
        return {"kind": "bpe", "json": self._bpe.to_str()}


class WordSpeller(Speller):
    """Words between spaces, and `<eos>` for each line end; the spaces themselves are lost.

    Args:
        words: Known words; others are `<unk>`, which may itself be a known word.
    """

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self._numbers = {word: number for number, word in enumerate(words, TEXT + 1)}
        self._unknown = self._numbers[_UNKNOWN]
        spelled = (b"\n" if word == LINE_END else f"{word} ".encode() for word in words)
        self.spellings = [b"", b"", *spelled]

    @classmethod
    def train(cls, texts: Iterable[str], *, max_words: int | None = None) -> WordSpeller:
        """Learn the words of `texts`, the most frequent first, equally frequent ones by alphabet.

        Args:
            texts: Training texts.
            max_words: Known words at most, `<unk>` and `<eos>` included; None for no limit.
        """
        counts = Counter({_UNKNOWN: 0, LINE_END: 0})
        for text in texts:
            counts.update(_words(text))
        fixed = {_UNKNOWN, LINE_END}
        words = sorted(counts, key=lambda word: (word not in fixed, -counts[word], word))
        return cls(words[:max_words])

    def encode(self, text: str) -> NDArray[np.integer]:
        numbers, unknown = self._numbers, self._unknown
        return np.array([numbers.get(word, unknown) for word in _words(text)], dtype=np.int64)

    def state(self) -> dict[str, Any]:
        return {"kind": "word", "words": self.words}


def _lines(text: str) -> Iterator[str]:
    """Lines with their ends, by line feeds alone."""
    start = 0
    while stop := text.find("\n", start) + 1:
        yield text[start:stop]
        start = stop
    if start < len(text):
        yield text[start:]


def _words(text: str) -> list[str]:
    return text.replace("\n", f" {LINE_END} ").split()


def _letters() -> list[str]:
    """The letter by which byte-level encoding writes each byte (GPT-2's table)."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]
