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
"""Last tokens of a passage in which the right name does not stand; half of one below 512 tokens."""


class Book(NamedTuple):
    """A book in words.

    Attributes:
        words: All words and marks, lower-cased but for names.
        name: (words,) bool, True where a name stands.
    """

    words: list[str]
    name: np.ndarray


class Question(NamedTuple):
    """Attributes: book; position of the missing name; candidates, the right one first."""

    book: int
    at: int
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
    """Find the names of a book that can be asked for behind a passage of `length` - 1 tokens."""
    recent = min(RECENT, length // 2)
    found = []
    for at in np.flatnonzero(book.name):
        start = at - length + 1
        if start < 0:
            continue
        place = start + np.flatnonzero(book.name[start:at])
        last = {book.words[i]: int(i) for i in place}  # the last time that each name stands
        right = book.words[at]
        if right not in last or last[right] >= at - recent or len(last) < CANDIDATES:
            continue
        counts = Counter(book.words[i] for i in place)
        others = sorted((n for n in counts if n != right), key=lambda n: (-counts[n], n))
        found.append(Question(number, int(at), [right, *others[: CANDIDATES - 1]]))
    return found
