"""Text to token ids and back: the one hierarchy of tokenizers, and those of single texts.

Tokenizers of running text, whose tokens stand for bytes, are in `stream_tokenizers`. All
vocabularies are learnt from the training text only, in an order that only the text decides.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from clusterformer.data.byte_pairs import (
    NUM_BYTES,
    count_words,
    load_subwords,
    repeat_words,
    train_byte_pairs,
)
from clusterformer.data.word_pieces import NUM_PIECES, train_word_pieces
from clusterformer.errors import InputError
from clusterformer.models.embeddings import PAD
from clusterformer.structure import require_arguments, require_structure

UNK = PAD + 1
"""Unknown word; for tokenizers of single texts."""

BOS = PAD + 1
"""Start of a document; for tokenizers of running text, which have no UNK."""

BOS_EOS = UNK + 1
"""Start and end of a sentence; for tokenizers of translation."""

SPECIAL_TOKENS = ["<pad>", "<unk>"]

TokenizerKind = Literal["word", "bpe", "wordpiece"]

_BOS_EOS_TOKEN = "<edge>"  # its name in checkpoints; no text can spell it

SPLITS = {
    # Runs of letters and digits, single marks; English contractions as in the Penn Treebank, which
    # is how the words of GloVe were made: do n't, it 's.
    "words": re.compile(r"\w+(?=n't\b)|n't\b|'(?:s|m|d|re|ve|ll)\b|\w+|[^\w\s]", re.IGNORECASE),
    "whitespace": re.compile(r"\S+"),
}


class Tokenizer(ABC):
    """Text to token ids and back; id 0 is padding."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of token ids."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Split a text into token ids."""

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Split each text into token ids."""
        return [self.encode(text) for text in texts]

    @abstractmethod
    def ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Return each token as a string for people to read."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Join tokens to a text; padding, BOS and BOS_EOS give none."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return plain values from which `tokenizer_from_state` makes the same tokenizer."""


TokenizerT = TypeVar("TokenizerT", bound=Tokenizer)


class WordTokenizer(Tokenizer):
    """A vocabulary of words; a text without any word is one UNK.

    Args:
        words: Known words; the first has the id after the special tokens.
        lowercase: Whether to ignore case; `words` are lower-cased then.
        split: "words" separates punctuation from words, "whitespace" splits at spaces only.
    """

    def __init__(
        self,
        words: list[str],
        *,
        lowercase: bool = True,
        split: Literal["words", "whitespace"] = "words",
    ) -> None:
        self.words, self._lowercase, self._split = words, lowercase, split
        self._tokens = [*SPECIAL_TOKENS, *words]
        self._ids = {word: i for i, word in enumerate(words, len(SPECIAL_TOKENS))}

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
        """Learn the words of `texts`, most frequent first, ties in alphabetical order.

        Args:
            texts: Training texts.
            min_count: Minimum number of occurrences of a known word.
            max_words: Maximum number of known words; None for no limit.
            lowercase: Whether to ignore case.
            split: Way to split, one of the class's.
        """
        empty = cls([], lowercase=lowercase, split=split)
        counts = Counter(word for text in texts for word in empty.split_text(text))
        words = [word for word, count in counts.items() if count >= min_count]
        words.sort(key=lambda word: (-counts[word], word))
        return cls(words[:max_words], lowercase=lowercase, split=split)

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(word, UNK) for word in self.split_text(text)] or [UNK]

    def ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        return [self._tokens[i] for i in ids]

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self._tokens[i] for i in ids if i != PAD)

    def state(self) -> dict[str, Any]:
        return {
            "kind": "word",
            "words": self.words,
            "lowercase": self._lowercase,
            "split": self._split,
        }

    def split_text(self, text: str) -> list[str]:
        """Split a text into words, known or not."""
        return SPLITS[self._split].findall(text.lower() if self._lowercase else text)


class SubwordTokenizer(WordTokenizer):
    """Subwords of texts that are split already: spaces between them, `@@` where a word goes on.

    Args:
        words: Known subwords; the first has the id after BOS_EOS.
    """

    def __init__(self, words: list[str]) -> None:
        super().__init__([_BOS_EOS_TOKEN, *words], lowercase=False, split="whitespace")
        del self._ids[_BOS_EOS_TOKEN]

    def decode(self, ids: Iterable[int]) -> str:
        joined = super().decode(i for i in ids if i != BOS_EOS)
        return f"{joined} ".replace("@@ ", "").strip()

    def state(self) -> dict[str, Any]:
        return {"kind": "piece", "words": self.words[1:]}


class BytePairTokenizer(Tokenizer):
    """Byte-pair encoding on bytes: no text is unknown, an empty one is one UNK.

    Args:
        json: JSON of the `tokenizers` library.
    """

    kind = "bpe"
    min_vocab_size = BOS_EOS + 1 + NUM_BYTES
    """Special tokens and single bytes."""

    _train = staticmethod(train_byte_pairs)

    def __init__(self, json: str) -> None:
        self._subwords = load_subwords(json)

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        vocab_size: int = 8000,
        lowercase: bool = True,
        bos_eos: bool = False,
    ) -> BytePairTokenizer:
        """Learn subwords from `texts`.

        Args:
            texts: Training texts.
            vocab_size: Number of tokens, single bytes included; fewer if the texts have no more.
            lowercase: Whether to ignore case.
            bos_eos: Whether to reserve id 2 for BOS_EOS.
        """
        json = cls._train(
            repeat_words(count_words(texts)),
            vocab_size=vocab_size,
            special_tokens=[*SPECIAL_TOKENS, _BOS_EOS_TOKEN] if bos_eos else SPECIAL_TOKENS,
            lowercase=lowercase,
            space_before=True,
        )
        return cls(json)

    @property
    def vocab_size(self) -> int:
        return self._subwords.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        return self._subwords.encode(text).ids or [UNK]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids or [UNK] for encoding in self._subwords.encode_batch_fast(texts)]

    def ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        return [self._subwords.decode([i], skip_special_tokens=False) for i in ids]

    def decode(self, ids: Iterable[int]) -> str:
        return self._subwords.decode(list(ids)).removeprefix(" ")

    def state(self) -> dict[str, Any]:
        return {"kind": self.kind, "json": self._subwords.to_str()}


class WordPieceTokenizer(BytePairTokenizer):
    """WordPiece on bytes: as byte pairs, but a word is cut into its longest known pieces.

    Args:
        json: JSON of the `tokenizers` library.
    """

    kind = "wordpiece"
    min_vocab_size = BOS_EOS + 1 + NUM_PIECES
    """Special tokens and single bytes, at the start of a word and behind."""

    _train = staticmethod(train_word_pieces)


def learn_tokenizer(
    texts: Iterable[str],
    kind: TokenizerKind,
    *,
    vocab_size: int | None = None,
    lowercase: bool = True,
    min_count: int = 1,
    split: Literal["words", "whitespace"] = "words",
) -> Tokenizer:
    """Learn a tokenizer of single texts from the training texts.

    Args:
        texts: Training texts.
        kind: "word", or for subwords "bpe" (byte pairs) or "wordpiece".
        vocab_size: Maximum number of words or subwords; None for no limit of words, and 8000
            subwords.
        lowercase: Whether to ignore case.
        min_count: Minimum number of occurrences of a known word; not for subwords.
        split: Way to split into words; not for subwords.

    Raises:
        InputError: if `vocab_size` has no room for the single bytes of subwords.
    """
    if kind != "word":
        subwords = {"bpe": BytePairTokenizer, "wordpiece": WordPieceTokenizer}[kind]
        size, least = vocab_size or 8000, subwords.min_vocab_size
        if size < least:
            raise InputError(f"vocab_size for tokenizer {kind}: at least {least}, got {size}")
        return subwords.train(texts, vocab_size=size, lowercase=lowercase)
    return WordTokenizer.train(
        texts, min_count=min_count, max_words=vocab_size, lowercase=lowercase, split=split
    )


def tokenizer_from_state(state: dict[str, Any]) -> Tokenizer:
    """Make the tokenizer of single texts that returned this `state()`.

    Raises:
        InputError: if none did.
    """
    kinds: dict[str, type[Tokenizer]] = {
        "word": WordTokenizer,
        "bpe": BytePairTokenizer,
        "wordpiece": WordPieceTokenizer,
        "piece": SubwordTokenizer,
    }
    return make_kind(kinds, state)


def make_kind(kinds: Mapping[str, type[TokenizerT]], state: Any) -> TokenizerT:
    """Make a tokenizer from its `state()`: its kind, and the options of that kind's constructor.

    Raises:
        InputError: if there is no such kind, or the options are not of the types that it takes.
    """
    require_structure(state, dict[str, Any], "tokenizer")
    options = dict(state)
    kind = options.pop("kind", None)
    if not isinstance(kind, str) or kind not in kinds:
        raise InputError(f"tokenizer.kind must be {' or '.join(kinds)}, got {kind!r:.60}")
    require_arguments(kinds[kind], options, "tokenizer")
    return kinds[kind](**options)
