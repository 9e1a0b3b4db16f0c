"""Texts of the cloze task: passages of books with a missing name.

B batch   N tokens   K candidates
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from clusterformer.data.book_names import CANDIDATES, Book, Question
from clusterformer.data.cloze_words import ClozeWords
from clusterformer.task import IGNORE
from clusterformer.tasks.generated.generated_task import GeneratedTexts


class ClozeBatch(NamedTuple):
    """Passages with a missing name at their end."""

    tokens: Tensor  # (B, N) int64
    mask: Tensor  # (B, N) bool
    target: Tensor  # (B,) int64: which candidate is right
    asked: Tensor  # (B, 1) int64: position of the missing name
    candidates: Tensor  # (B, K) int64: tokens


class ClozeTexts(GeneratedTexts):
    """Passages with a missing name.

    Args:
        books: Books of one part.
        questions: What can be asked in them.
        words: Token ids of words and names.
        stream: Numbers that name this list of texts.
        length: Number of tokens of every text, special ones counted.
        fresh: Share of texts with fresh names.
    """

    def __init__(
        self,
        books: list[Book],
        questions: list[Question],
        words: ClozeWords,
        stream: tuple[int, ...],
        *,
        length: int,
        fresh: float,
    ) -> None:
        super().__init__(stream)
        self._books, self._questions, self._words = books, questions, words
        self._length, self._fresh = length, fresh
        self._order = np.random.default_rng(stream).permutation(len(questions))

    def __getitem__(self, indices: list[int]) -> ClozeBatch:
        if not indices:
            zero = torch.zeros(1, 1, dtype=torch.long)
            candidates = zero.expand(1, CANDIDATES)
            return ClozeBatch(zero, zero.bool(), zero[0] + IGNORE, zero, candidates)
        rows = [self._text(index) for index in indices]
        tokens, candidates = (torch.tensor([row[i] for row in rows]) for i in (0, 1))
        asked = torch.full((len(rows), 1), self._length - 1 - len(self._words.after))
        target = torch.tensor([row[2] for row in rows])
        return ClozeBatch(
            tokens, torch.ones_like(tokens, dtype=torch.bool), target, asked, candidates
        )

    def _text(self, index: int) -> tuple[list[int], list[int], int]:
        """Tokens of one text, of its candidates, and which is right."""
        generator = self.generator(index)
        asked = self._questions[self._order[index % len(self._order)]]
        book = self._books[asked.book]
        words = self._words
        passage = self._length - 1 - len(words.before) - len(words.after)
        part = slice(asked.at - passage, asked.at)
        pairs = zip(book.words[part], book.name[part], strict=True)
        names = dict.fromkeys([*asked.candidates, *(word for word, is_name in pairs if is_name)])
        ids = self._ids(list(names), generator)
        order = generator.permutation(CANDIDATES)
        candidates = [ids[asked.candidates[i]] for i in order]
        tokens = [ids[w] if w in ids else words.word(w) for w in book.words[part]]
        row = [*words.before, *tokens, words.blank, *words.after]
        return row, candidates, int(np.argmin(order))

    def _ids(self, names: list[str], generator: np.random.Generator) -> dict[str, int]:
        """Give all names of a text a token id, the candidates different ones."""
        known = self._words.names
        if generator.random() < self._fresh:
            drawn = generator.permutation(len(known))
        else:  # by spelling; one that is taken gives way to the next
            drawn = np.array([self._words.name(name) for name in names])
        taken: dict[int, None] = {}
        for rank in range(len(names)):
            number = int(drawn[rank % len(drawn)])
            while number in taken and len(taken) < len(known):
                number = (number + 1) % len(known)
            taken[number] = None
        return {name: known[number] for name, number in zip(names, taken, strict=False)}
