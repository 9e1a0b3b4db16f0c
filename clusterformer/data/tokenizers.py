"""Text to token numbers and back: a vocabulary of words, or byte-pair encoding.

Both are learnt from training text alone, in an order that only the text decides.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from clusterformer.data.batches import PAD
from clusterformer.errors import InputError

UNK = PAD + 1
EDGE = UNK + 1
"""Begins and ends a text, for tokenizers made with `edge`; no text can spell it."""

SPECIAL = ["<pad>", "<unk>"]

FEWEST = EDGE + 1 + 256
"""Pieces of byte-pair encoding that has learnt nothing: special ones and single bytes."""

_SPLITS = {
    # Runs of letters and digits, single marks; English contractions as in the Penn Treebank, which
    # is how the words of GloVe were made: do n't, it 's.
    "words": re.compile(r"\w+(?=n't\b)|n't\b|'(?:s|m|d|re|ve|ll)\b|\w+|[^\w\s]", re.IGNORECASE),
    "whitespace": re.compile(r"\S+"),
}


class Tokenizer(ABC):
    """Splits text into numbered pieces; number 0 is padding, 1 stands for the unknown."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """One more than the highest number."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Numbers of the pieces of `text`; a text without any is one unknown piece."""

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text."""
        return [self.encode(text) for text in texts]

    @abstractmethod
    def pieces(self, tokens: Iterable[int]) -> list[str]:
        """What each number stands for, to be read by people."""

    @abstractmethod
    def decode(self, tokens: Iterable[int]) -> str:
        """The text of the numbers; padding and edges say nothing."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Plain values from which `restore` makes the same tokenizer."""


def restore(state: dict[str, Any]) -> Tokenizer:
    """Make the tokenizer whose `state()` this is."""
    kinds = {"word": WordTokenizer, "bpe": BytePairTokenizer, "piece": PieceTokenizer}
    options = dict(state)
    return kinds[options.pop("kind")](**options)


class WordTokenizer(Tokenizer):
    """A vocabulary of words.

    Args:
        words: Known words; the first gets the number after the special ones.
        lowercase: Whether case is ignored; the words are then lower-cased.
        split: "words" parts words from punctuation, "whitespace" leaves what spaces part whole.
    """

    def __init__(
        self,
        words: list[str],
        *,
        lowercase: bool = True,
        split: Literal["words", "whitespace"] = "words",
    ) -> None:
        self.words, self._lowercase, self._split = words, lowercase, split
        self._pieces = [*SPECIAL, *words]
        self._numbers = {word: number for number, word in enumerate(words, len(SPECIAL))}

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        min_count: int = 1,
        max_words: int | None = None,
        lowercase: bool = True,
        split: Literal["words", "whitespace"] = "words",
    ) -> WordTokenizer:
        """Learn the words of `texts`, the most frequent first, equally frequent ones by alphabet.

        Args:
            texts: Training texts.
            min_count: Rarer words stay unknown.
            max_words: Known words at most; None for no limit.
            lowercase: As in the class.
            split: As in the class.
        """
        empty = cls([], lowercase=lowercase, split=split)
        counts = Counter(word for text in texts for word in empty._split_text(text))
        words = [word for word, count in counts.items() if count >= min_count]
        words.sort(key=lambda word: (-counts[word], word))
        return cls(words[:max_words], lowercase=lowercase, split=split)

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    def encode(self, text: str) -> list[int]:
        return [self._numbers.get(word, UNK) for word in self._split_text(text)] or [UNK]

    def pieces(self, tokens: Iterable[int]) -> list[str]:
        return [self._pieces[token] for token in tokens]

    def decode(self, tokens: Iterable[int]) -> str:
        return " ".join(self._pieces[token] for token in tokens if token != PAD)

    def state(self) -> dict[str, Any]:
        return {
            "kind": "word",
            "words": self.words,
            "lowercase": self._lowercase,
            "split": self._split,
        }

    def _split_text(self, text: str) -> list[str]:
        return _SPLITS[self._split].findall(text.lower() if self._lowercase else text)


class PieceTokenizer(WordTokenizer):
    """Pieces that somebody else has cut: spaces part them, `@@` joins one to the next.

    Args:
        words: Known pieces; the first gets the number after `EDGE`.
    """

    def __init__(self, words: list[str]) -> None:
        super().__init__(["<edge>", *words], lowercase=False, split="whitespace")
        del self._numbers["<edge>"]

    def decode(self, tokens: Iterable[int]) -> str:
        joined = super().decode(token for token in tokens if token != EDGE)
        return f"{joined} ".replace("@@ ", "").strip()

    def state(self) -> dict[str, Any]:
        return {"kind": "piece", "words": self.words[1:]}


class BytePairTokenizer(Tokenizer):
    """Byte-pair encoding on bytes, by the `tokenizers` library: no text is unknown to it.

    Args:
        json: The library's own description of a tokenizer.
    """

    def __init__(self, json: str) -> None:
        self._bpe = tokenizers_library().Tokenizer.from_str(json)
        self._bpe.encode_special_tokens = True  # "<pad>" in a text is five letters like any other

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        vocab_size: int = 8000,
        lowercase: bool = True,
        edge: bool = False,
    ) -> BytePairTokenizer:
        """Learn `vocab_size` pieces, single bytes included, from `texts`.

        Args:
            texts: Training texts.
            vocab_size: Pieces to learn; fewer if the texts have no more.
            lowercase: Whether case is ignored.
            edge: Whether number 2 is `EDGE`.
        """
        library = tokenizers_library()
        bpe = library.Tokenizer(library.models.BPE())
        if lowercase:
            bpe.normalizer = library.normalizers.Lowercase()
        bpe.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=True)
        bpe.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[*SPECIAL, "<edge>"] if edge else SPECIAL,
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        bpe.train_from_iterator(_repeated(_frequent(texts)), trainer)
        return cls(bpe.to_str())

    @property
    def vocab_size(self) -> int:
        return self._bpe.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        return self._bpe.encode(text).ids or [UNK]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids or [UNK] for encoding in self._bpe.encode_batch_fast(texts)]

    def pieces(self, tokens: Iterable[int]) -> list[str]:
        return [self._bpe.decode([token], skip_special_tokens=False) for token in tokens]

    def decode(self, tokens: Iterable[int]) -> str:
        return self._bpe.decode(list(tokens)).removeprefix(" ")

    def state(self) -> dict[str, Any]:
        return {"kind": "bpe", "json": self._bpe.to_str()}


_MOST_WORDS = 500_000


def _frequent(texts: Iterable[str]) -> Counter[str]:
    """Count words; whenever there are too many different ones, the rarest go.

    The library takes a kilobyte for each, and rare ones decide about no piece.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text.split(" "))
        least = 1
        while len(counts) > _MOST_WORDS // min(least, 2):
            least += 1
            counts = Counter({word: count for word, count in counts.items() if count >= least})
    del counts[""]
    return counts


def _repeated(counts: Counter[str]) -> Iterator[str]:
    """Texts with each word as often as it was counted, for a library that counts texts."""
    for word, count in counts.items():
        for first in range(0, count, 1000):
            yield " ".join([word] * min(1000, count - first))


def tokenizers_library() -> Any:
    """The `tokenizers` module, or one line that says how to install it."""
    try:
        import tokenizers
    except ImportError:
        raise InputError(
            "byte-pair encoding needs the tokenizers library: pip install 'clusterformer[text]'"
        ) from None
    return tokenizers
