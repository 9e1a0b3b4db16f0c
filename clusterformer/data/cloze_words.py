"""Token ids of the words and names of a cloze text: of training books, or of a pretrained model."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence

from clusterformer.data.book_names import CANDIDATES, Book
from clusterformer.data.pretrained_tokenizer import PretrainedTokenizer
from clusterformer.errors import InputError

UNKNOWN, BLANK, FIRST_NAME = 1, 2, 3
"""Token ids of words without one, of the missing name, and of the first name, in books."""


class ClozeWords(ABC):
    """Token ids of words, and those that names can have.

    Attributes:
        names: Token ids of names.
        blank: Token id of the missing name.
        before: Special tokens before a text.
        after: Special tokens after a text.
    """

    names: Sequence[int]
    blank: int
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @abstractmethod
    def word(self, word: str) -> int:
        """Return the token id of a word that is no name."""

    def name(self, name: str) -> int:
        """Return the index in `names` of a name, by its spelling; others may have the same."""
        return zlib.crc32(name.encode()) % len(self.names)


class BookWords(ClozeWords):
    """The commonest words of some books; names have token ids that mean nothing.

    Args:
        words: Words that have a token id; others are unknown.
        num_names: Number of token ids of names.
    """

    blank = BLANK

    def __init__(self, words: Sequence[str], num_names: int) -> None:
        first = FIRST_NAME + num_names
        self.names = range(FIRST_NAME, first)
        self.ids = {word: first + rank for rank, word in enumerate(words)}

    @classmethod
    def learn(cls, books: Iterable[Book], vocab_size: int, num_names: int) -> BookWords:
        """Give the `vocab_size` commonest words of books, in lower case, a token id."""
        return cls(_commonest(books, names=False)[:vocab_size], num_names)

    def word(self, word: str) -> int:
        return self.ids.get(word, UNKNOWN)


class PretrainedWords(ClozeWords):
    """Words as a pretrained model reads them, each one token: of several the first.

    Args:
        tokenizer: Tokenizer of the model.
        names: Names that are one token each.
    """

    def __init__(self, tokenizer: PretrainedTokenizer, names: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._ids: dict[str, int] = {}
        self._rank = {name: rank for rank, name in enumerate(names)}
        self.names = [self.word(name) for name in names]
        self.blank = tokenizer.blank
        self.before, self.after = tokenizer.single.before, tokenizer.single.after

    @classmethod
    def learn(
        cls, tokenizer: PretrainedTokenizer, books: Iterable[Book], num_names: int
    ) -> PretrainedWords:
        """Take the commonest names of books that are one token, at most `num_names`.

        Raises:
            InputError: if there are not more than candidates of a question.
        """
        names: dict[int, str] = {}
        for name in _commonest(books, names=True):
            tokens = _tokens(tokenizer, name)
            if len(tokens) == 1 and tokens[0] != tokenizer.unknown:
                names.setdefault(tokens[0], name)
        if len(names) <= CANDIDATES:
            raise InputError(
                f"only {len(names)} of the training books' names are one token of the pretrained "
                f"model; more than {CANDIDATES} are needed: give more books"
            )
        return cls(tokenizer, list(names.values())[:num_names])

    @property
    def spellings(self) -> list[str]:
        """Names in the order of their token ids."""
        return list(self._rank)

    def word(self, word: str) -> int:
        if word not in self._ids:
            self._ids[word] = _tokens(self._tokenizer, word)[0]
        return self._ids[word]

    def name(self, name: str) -> int:
        return self._rank.get(name, super().name(name))


def _commonest(books: Iterable[Book], *, names: bool) -> list[str]:
    """List the names of books, or all other words: the commonest first, equals by their letters."""
    counts = Counter(
        word
        for book in books
        for word, is_name in zip(book.words, book.name, strict=True)
        if is_name == names
    )
    return sorted(counts, key=lambda word: (-counts[word], word))


def _tokens(tokenizer: PretrainedTokenizer, word: str) -> list[int]:
    """Token ids of a word within a text, where a space stands before it."""
    return tokenizer.encode(f" {word}") or [tokenizer.blank]
