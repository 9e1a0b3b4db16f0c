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
"""Last tokens of a passage in which no candidate stands; a quarter of one below 1,024 tokens."""


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
    """Find the names of a book that can be asked for behind a passage of `length` - 1 tokens.

    As the right name, no candidate stands in the last tokens of the passage: no window tells one
    from the other. The others are drawn by how often they stand in the passage, as the right one
    has been.
    """
    recent = min(RECENT, length // 4)
    found = []
    for at in np.flatnonzero(book.name):
        start = at - length + 1
        if start < 0:
            continue
        positions = start + np.flatnonzero(book.name[start:at])
        last = {book.words[i]: int(i) for i in positions}  # the last time that each name stands
        right = book.words[at]
        far = sorted(name for name, i in last.items() if i < at - recent and name != right)
        if last.get(right, at) >= at - recent or len(far) < CANDIDATES - 1:
            continue
        counts = Counter(book.words[i] for i in positions)
        weights = np.array([counts[name] for name in far]) / sum(counts[name] for name in far)
        drawn = np.random.default_rng([number, int(at)]).choice(
            len(far), CANDIDATES - 1, replace=False, p=weights
        )
        found.append(Question(number, int(at), [right, *(far[i] for i in drawn)]))
    return found
