"""Texts of the cloze task: passages of books with missing names.

B batch   N tokens   A missing names   K candidates
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from clusterformer.data.book_names import CANDIDATES, Book, Question, more_questions
from clusterformer.data.cloze_words import ClozeWords
from clusterformer.task import IGNORE
from clusterformer.tasks.generated.generated_task import GeneratedTexts


class ClozeBatch(NamedTuple):
    """Passages with a missing name in their last sentence, and maybe others before."""

    tokens: Tensor  # (B, N) int64
    mask: Tensor  # (B, N) bool
    target: Tensor  # (B, A) int64: which candidate is right
    asked: Tensor  # (B, A) int64: position of the answer
    missing: Tensor  # (B, A) int64: position of the missing name
    candidates: Tensor  # (B, A, K) int64: tokens


class _Answer(NamedTuple):
    missing: int
    asked: int
    right: int
    candidates: list[int]


class ClozeTexts(GeneratedTexts):
    """Passages with missing names.

    Args:
        books: Books of one part.
        questions: What can be asked in the last sentence of a text.
        words: Token ids of words and names.
        stream: Numbers that name this list of texts.
        length: Number of tokens of every text, special ones counted.
        fresh: Share of texts with fresh names.
        asked_names: Number of names that a text asks for, at most.
        causal: Whether the answer stands at the end of the sentence, not at the missing name.
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
        asked_names: int,
        causal: bool,
    ) -> None:
        super().__init__(stream)
        self._books, self._questions, self._words = books, questions, words
        self._length, self._fresh = length, fresh
        self._asked_names, self._causal = asked_names, causal
        self._order = np.random.default_rng(stream).permutation(len(questions))

    def __getitem__(self, indices: list[int]) -> ClozeBatch:
        if not indices:
            zero = torch.zeros(1, 1, dtype=torch.long)
            candidates = zero[..., None].expand(1, 1, CANDIDATES)
            return ClozeBatch(zero, zero.bool(), zero + IGNORE, zero, zero, candidates)
        rows = [self._text(index) for index in indices]
        tokens = torch.tensor([row for row, _ in rows])
        size = (len(rows), max(len(answers) for _, answers in rows))
        target = torch.full(size, IGNORE)
        asked, missing = torch.zeros(2, *size, dtype=torch.long)
        candidates = torch.zeros(*size, CANDIDATES, dtype=torch.long)
        for row, (_, answers) in enumerate(rows):
            for i, answer in enumerate(answers):
                target[row, i], asked[row, i] = answer.right, answer.asked
                missing[row, i] = answer.missing
                candidates[row, i] = torch.tensor(answer.candidates)
        mask = torch.ones_like(tokens, dtype=torch.bool)
        return ClozeBatch(tokens, mask, target, asked, missing, candidates)

    def _text(self, index: int) -> tuple[list[int], list[_Answer]]:
        """Tokens of one text, and what it asks for."""
        generator = self.generator(index)
        last = self._questions[self._order[index % len(self._order)]]
        book, words = self._books[last.book], self._words
        length = self._length - len(words.before) - len(words.after)
        start = last.end - length
        others = more_questions(book, last, length, self._asked_names - 1, generator)
        part = slice(start, last.end)
        pairs = zip(book.words[part], book.name[part], strict=True)
        names = dict.fromkeys([*last.candidates, *(word for word, is_name in pairs if is_name)])
        ids = self._ids(list(names), generator)
        tokens = [ids[w] if w in ids else words.word(w) for w in book.words[part]]
        answers = []
        for question in (last, *others):
            order = generator.permutation(CANDIDATES)
            if not ids.keys() >= set(question.candidates):  # more names than there are ids
                continue
            candidates = [ids[question.candidates[i]] for i in order]
            tokens[question.at - start] = words.blank
            missing = question.at - start + len(words.before)
            asked = missing + (question.end - 1 - question.at if self._causal else 0)
            answers.append(_Answer(missing, asked, int(np.argmin(order)), candidates))
        return [*words.before, *tokens, *words.after], answers

    def _ids(self, names: list[str], generator: np.random.Generator) -> dict[str, int]:
        """Give each name of a text a token id of its own, the first ones if there are too few."""
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
