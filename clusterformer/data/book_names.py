"""Names in books, and questions which of them is missing.

K candidates
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import numpy as np

CANDIDATES = 10
"""K."""

RECENT = 256
"""Tokens before a missing name without a candidate; a quarter of a text below 1,024 tokens."""

LONGEST = 32
"""Most tokens of a sentence from its missing name on."""


class Book(NamedTuple):
    """A book in words.

    Attributes:
        words: All words and marks, lower-cased but for names.
        name: (words,) bool, True where a name stands.
    """

    words: list[str]
    name: np.ndarray


class Question(NamedTuple):
    """A name that a text asks for.

    Attributes:
        book: Number of the book.
        at: Position of the missing name in its book.
        end: Position behind its sentence.
        candidates: What it may be, the right one first.
    """

    book: int
    at: int
    end: int
    candidates: list[str]


def parse(text: str) -> Book:
    """Cut a text into words and marks, and find its names."""
    words = re.findall(r"[^\W\d_]+(?:['’][^\W\d_]+)?|\d+|[^\w\s]", text)
    lower = {word for word in words if word.islower()}
    inside = Counter(
        word
        for before, word in pairwise(words)
        if before.isalpha() and word.istitle() and len(word) > 2 and word.lower() not in lower
    )
    names = {word for word, count in inside.items() if count > 1}
    is_name = np.array([word in names for word in words], dtype=bool)
    kept = [w if n else w.lower() for w, n in zip(words, is_name, strict=True)]
    return Book(kept, is_name)


def questions(book: Book, number: int, length: int) -> list[Question]:
    """Find the names of a book that can be asked for in the last sentence of `length` tokens.

    No candidate stands in the last tokens before it.
    """
    near = min(RECENT, length // 4)
    found = []
    for at in map(int, np.flatnonzero(book.name)):
        start = (end := _sentence_end(book, at)) - length
        if start >= 0:
            generator, positions = np.random.default_rng([number, at]), _names_of(book, start, end)
            if names := _candidates(book, at, positions, near, generator):
                found.append(Question(number, at, end, names))
    return found


def more_questions(
    book: Book, last: Question, length: int, count: int, generator: np.random.Generator
) -> list[Question]:
    """Draw up to `count` further names of the text that `last` ends, at most one of a sentence.

    No candidate stands near on either side. The first time that a name stands in the text it is not
    asked for, so each right one is seen.
    """
    near = min(RECENT, length // 4) // 4
    positions = _names_of(book, last.end - length, last.end)
    first = {book.words[i]: int(i) for i in positions[::-1]}
    found: dict[int, Question] = {}
    for at in map(int, generator.permutation(positions)):
        if len(found) == count:
            break
        end = _sentence_end(book, at)
        if first[book.words[at]] == at or end in found or end >= last.end:
            continue
        if names := _candidates(book, at, positions, near, generator):
            found[end] = Question(last.book, at, end, names)
    return list(found.values())


def _sentence_end(book: Book, at: int) -> int:
    """Position behind the sentence of a name, or behind its first tokens."""
    stop = min(at + LONGEST, len(book.words))
    return next((i + 1 for i in range(at + 1, stop) if book.words[i] in ".!?"), stop)


def _names_of(book: Book, start: int, end: int) -> np.ndarray:
    """Positions of all names of a text of a book."""
    return start + np.flatnonzero(book.name[start:end])


def _candidates(
    book: Book, at: int, positions: np.ndarray, near: int, generator: np.random.Generator
) -> list[str]:
    """Draw names that could be the missing one, itself first; none where it must not be asked for.

    No candidate stands within `near` tokens: no window tells one from the other. The wrong ones are
    drawn by how often they stand in the text, as the right one has been.
    """
    positions = positions[positions != at]
    counts = Counter(book.words[i] for i in positions)
    close = {book.words[i] for i in positions[abs(positions - at) <= near]}
    right = book.words[at]
    far = sorted(counts.keys() - close - {right})
    if right in close or right not in counts or len(far) < CANDIDATES - 1:
        return []
    weights = np.array([counts[name] for name in far], dtype=float)
    drawn = generator.choice(len(far), CANDIDATES - 1, replace=False, p=weights / weights.sum())
    return [right, *(far[i] for i in drawn)]
