"""Tokenizers of running text, as language models read it: bytes, subwords or words.

Each token stands for some bytes, so that a language model's text can be measured in bytes and
written out again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from clusterformer.data.byte_pairs import (
    NUM_BYTES,
    byte_table,
    load_subwords,
    train_byte_pairs,
)
from clusterformer.data.tokenizers import BOS, Tokenizer, make_kind
from clusterformer.data.word_pieces import CONTINUED, NUM_PIECES, train_word_pieces
from clusterformer.errors import InputError

LINE_END = "<eos>"
"""Word for the end of a line, as in WikiText."""

_UNKNOWN = "<unk>"
_SPECIAL_TOKENS = ["<pad>", "<text>"]  # names of PAD and BOS in checkpoints

StreamTokenizerKind = Literal["bytes", "bpe", "wordpiece", "word"]


class StreamTokenizer(Tokenizer):
    """Tokenizer of running text, each token of which stands for some bytes.

    Attributes:
        token_bytes: Bytes of UTF-8 of each token; none for PAD and BOS. A character may be spread
            over several tokens.
    """

    token_bytes: list[bytes]

    @property
    def vocab_size(self) -> int:
        return len(self.token_bytes)

    @property
    def lowercase(self) -> bool:
        """True if the tokens are those of the text in lower case."""
        return False

    @abstractmethod
    def encode_document(self, text: str) -> NDArray[np.integer]:
        """Split a document, however long, into token ids, without BOS before them."""

    def encode(self, text: str) -> list[int]:
        return self.encode_document(text).tolist()

    def ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        return [self.token_bytes[i].decode(errors="replace") for i in ids]

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(self.token_bytes[i] for i in ids).decode(errors="replace")


class ByteTokenizer(StreamTokenizer):
    """Bytes of UTF-8: 256 tokens, nothing to learn, no text unknown."""

    def __init__(self) -> None:
        self.token_bytes = [b"", b"", *(bytes([byte]) for byte in range(NUM_BYTES))]

    def encode_document(self, text: str) -> NDArray[np.integer]:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16) + (BOS + 1)

    def state(self) -> dict[str, Any]:
        return {"kind": "bytes"}


class StreamBytePairTokenizer(StreamTokenizer):
    """Byte-pair encoding on the bytes of each line: nothing is lost, no text is unknown.

    Args:
        json: JSON of the `tokenizers` library.
    """

    kind = "bpe"
    min_vocab_size = BOS + 1 + NUM_BYTES
    """Special tokens and single bytes."""

    _train = staticmethod(train_byte_pairs)

    def __init__(self, json: str) -> None:
        self._subwords = load_subwords(json)
        vocabulary = sorted((i, token) for token, i in self._subwords.get_vocab().items())
        self.token_bytes = [self._spelled(token) if i > BOS else b"" for i, token in vocabulary]

    @classmethod
    def train(
        cls, texts: Iterable[str], *, vocab_size: int, lowercase: bool = False
    ) -> StreamBytePairTokenizer:
        """Learn subwords from `texts`.

        Args:
            texts: Training documents.
            vocab_size: Number of tokens, single bytes included; fewer if the texts have no more.
            lowercase: Whether to ignore case, which is lost then.
        """
        json = cls._train(
            (line for text in texts for line in _lines(text)),
            vocab_size=vocab_size,
            special_tokens=_SPECIAL_TOKENS,
            lowercase=lowercase,
            space_before=False,
        )
        return cls(json)

    @property
    def lowercase(self) -> bool:
        return self._subwords.normalizer is not None

    def encode_document(self, text: str) -> NDArray[np.integer]:
        lines = _lines(text)
        found: list[NDArray[np.integer]] = []
        while chunk := list(islice(lines, 10_000)):
            found += [np.asarray(line.ids) for line in self._subwords.encode_batch_fast(chunk)]
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def state(self) -> dict[str, Any]:
        return {"kind": self.kind, "json": self._subwords.to_str()}

    @staticmethod
    def _spelled(token: str) -> bytes:
        """Bytes of a token that is not special."""
        byte_of = byte_table()
        return bytes(byte_of[character] for character in token)


class StreamWordPieceTokenizer(StreamBytePairTokenizer):
    """WordPiece on the bytes of each line: a word is cut into its longest known pieces.

    Args:
        json: JSON of the `tokenizers` library.
    """

    kind = "wordpiece"
    min_vocab_size = BOS + 1 + NUM_PIECES
    """Special tokens and single bytes, at the start of a word and behind."""

    _train = staticmethod(train_word_pieces)

    @staticmethod
    def _spelled(token: str) -> bytes:
        return StreamBytePairTokenizer._spelled(token.removeprefix(CONTINUED))


class StreamWordTokenizer(StreamTokenizer):
    """Words between spaces, and `<eos>` for each line end; the number of spaces is lost.

    Args:
        words: Known words; others become `<unk>`, which must be among them.
    """

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self._ids = {word: i for i, word in enumerate(words, BOS + 1)}
        if _UNKNOWN not in self._ids:
            raise InputError(f"tokenizer.words must hold {_UNKNOWN}")
        self._unknown = self._ids[_UNKNOWN]
        word_bytes = (b"\n" if word == LINE_END else f"{word} ".encode() for word in words)
        self.token_bytes = [b"", b"", *word_bytes]

    @classmethod
    def train(cls, texts: Iterable[str], *, max_words: int | None = None) -> StreamWordTokenizer:
        """Learn the words of `texts`, most frequent first, ties in alphabetical order.

        Args:
            texts: Training documents.
            max_words: Maximum number of known words, `<unk>` and `<eos>` included; None for no
                limit.
        """
        counts = Counter({_UNKNOWN: 0, LINE_END: 0})
        for text in texts:
            counts.update(_words(text))
        fixed = {_UNKNOWN, LINE_END}
        words = sorted(counts, key=lambda word: (word not in fixed, -counts[word], word))
        return cls(words[:max_words])

    def encode_document(self, text: str) -> NDArray[np.integer]:
        ids, unknown = self._ids, self._unknown
        return np.array([ids.get(word, unknown) for word in _words(text)], dtype=np.int64)

    def state(self) -> dict[str, Any]:
        return {"kind": "word", "words": self.words}


def stream_tokenizer_from_state(state: dict[str, Any]) -> StreamTokenizer:
    """Make the tokenizer of running text that returned this `state()`.

    Raises:
        InputError: if none did.
    """
    kinds: dict[str, type[StreamTokenizer]] = {
        "bytes": ByteTokenizer,
        "bpe": StreamBytePairTokenizer,
        "wordpiece": StreamWordPieceTokenizer,
        "word": StreamWordTokenizer,
    }
    return make_kind(kinds, state)


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of a text with their ends, split at line feeds only."""
    start = 0
    while stop := text.find("\n", start) + 1:
        yield text[start:stop]
        start = stop
    if start < len(text):
        yield text[start:]


def _words(text: str) -> list[str]:
    return text.replace("\n", f" {LINE_END} ").split()
