"""Cloze over books: which of ten names is missing, when it was last read long ago.

After the Children's Book Test (Hill et al., 2016): a passage of a book, then its next sentence with
one name missing. The ten candidates are names of the passage, and the right one does not stand
within its last 256 tokens. Train, valid and test have different books and authors, and in half of
the texts every name is replaced by a fresh one, so that knowing a book does not help.

B batch   N tokens   V vocabulary   K candidates
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from itertools import pairwise
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection

from clusterformer.data.documents import (
    LanguageModelingCorpus,
    named_documents,
    own_documents,
    read_documents,
)
from clusterformer.data.named_sets import Split
from clusterformer.errors import InputError, require_at_least
from clusterformer.models.asked_tokens import AskedTokens
from clusterformer.models.config import TransformerConfig
from clusterformer.task import IGNORE, Output
from clusterformer.tasks.generated.generated_task import (
    TEST,
    TRAIN,
    VALID,
    GeneratedTask,
    GeneratedTexts,
)

CANDIDATES = 10
"""K."""

RECENT = 256
"""Last tokens of a passage in which the right name does not stand; half of one below 512 tokens."""

UNKNOWN, BLANK, FIRST_NAME = 1, 2, 3
SPLITS: dict[int, Split] = {TRAIN: "train", VALID: "valid", TEST: "test"}


class ClozeBatch(NamedTuple):
    """Passages with a missing name at their end."""

    tokens: Tensor  # (B, N) int64
    mask: Tensor  # (B, N) bool
    target: Tensor  # (B,) int64: which candidate is right
    asked: Tensor  # (B, 1) int64: position of the missing name
    candidates: Tensor  # (B, K) int64: tokens


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


class ClozeState(TypedDict):
    """What a checkpoint holds of the task."""

    words: list[str]
    num_names: int


class Cloze(GeneratedTask):
    """Choose the missing name of a passage of a book among ten of its names.

    Tokens are words; the commonest of the training books have a number, others are unknown. A name
    is a capitalised word within a sentence whose lower-case form the book does not have. Names have
    `num_names` numbers of their own: each name one by its spelling, or, in the texts with fresh
    names, one by chance.

    Args:
        name: Named set of books, split by books and authors; or give `train` and others.
        root: Folder of the named data sets; $CLUSTERFORMER_DATA or the user's cache by default.
        train: Own training file or folder of texts.
        valid: Own validation file or folder of texts.
        test: Own test file or folder of texts.
        length: Number of tokens of the passage and of the sentence up to the missing name (N).
        vocab_size: Number of words that have a number.
        num_names: Number of numbers for names, at least 100.
        fresh: Share of texts with fresh names.
        options: Options of `GeneratedTask`.
    """

    state_type = ClozeState

    def __init__(
        self,
        name: LanguageModelingCorpus | None = None,
        *,
        root: str | None = None,
        train: str | None = None,
        valid: str | None = None,
        test: str | None = None,
        length: int = 1024,
        vocab_size: int = 8000,
        num_names: int = 1000,
        fresh: float = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        files: dict[Split, str | None] = {"train": train, "valid": valid, "test": test}
        if (name is None) == (train is None) or (train and None in files.values()):
            raise InputError(
                "give either a named set (name), or own texts as train, valid and test; got "
                f"name {name!r}, train {train!r}, valid {valid!r}, test {test!r}"
            )
        require_at_least(64, length=length)
        require_at_least(100, num_names=num_names)
        require_at_least(1, vocab_size=vocab_size)
        if not 0 <= fresh <= 1:
            raise InputError(f"fresh must be in 0..1, got {fresh}")
        self._name, self._root, self._files = name, root, files
        self._length, self._vocab_size = length, vocab_size
        self._num_names, self._fresh = num_names, fresh
        self._words: dict[str, int] = {}
        self._books: dict[Split, list[Book]] = {}
        self._questions: dict[Split, list[Question]] = {}

    @property
    def chance(self) -> float:
        return 1 / CANDIDATES

    @property
    def num_labels(self) -> int:
        return FIRST_NAME + self._num_names + self._vocab_size

    def texts(self, *stream: int) -> ClozeTexts:
        split = SPLITS[stream[0]]
        if split not in self._questions:
            self._books[split] = books = self._read(split)
            if not self._words:
                self._learn(books if split == "train" else self._read("train"))
            found = [q for i, book in enumerate(books) for q in questions(book, i, self._length)]
            if not found:
                raise InputError(
                    f"{split}: no passage of {self._length} tokens with {CANDIDATES} names and the "
                    "right one far from its end; give longer texts or a smaller length"
                )
            self._questions[split] = found
        return ClozeTexts(
            self._books[split], self._questions[split], self._words, stream,
            length=self._length, num_names=self._num_names, fresh=self._fresh,
        )  # fmt: skip

    def _read(self, split: Split) -> list[Book]:
        if self._name is not None:
            documents = named_documents(self._name, split, self._root)
        else:
            documents = own_documents(str(self._files[split]))
        return [parse(text) for text in read_documents(documents)]

    def _learn(self, books: list[Book]) -> None:
        """Number the commonest words of the training books."""
        counts = Counter(
            word
            for book in books
            for word, is_name in zip(book.words, book.name, strict=True)
            if not is_name
        )
        first = FIRST_NAME + self._num_names
        common = sorted(counts, key=lambda word: (-counts[word], word))[: self._vocab_size]
        self._words = {word: first + rank for rank, word in enumerate(common)}

    def build(self, config: TransformerConfig) -> AskedTokens:
        return AskedTokens(config, vocab_size=self.num_labels, max_length=self._length)

    def loss(
        self, output: Output, batch: ClozeBatch, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """Sum the cross-entropy among the candidates."""
        logits = _of_candidates(output, batch)
        total = F.cross_entropy(
            logits, batch.target, ignore_index=IGNORE, reduction="sum",
            label_smoothing=label_smoothing,
        )  # fmt: skip
        return total, (batch.target != IGNORE).sum()

    def metrics(self) -> MetricCollection:
        """Share of right choices."""
        return MetricCollection({"accuracy": MeanMetric()})

    def update(
        self, metrics: MetricCollection, output: Output, batch: ClozeBatch, network: nn.Module
    ) -> None:
        right = _of_candidates(output, batch).argmax(-1) == batch.target
        metrics["accuracy"].update(right[batch.target != IGNORE].float())

    def state(self) -> dict[str, Any]:
        return {"words": list(self._words), "num_names": self._num_names}

    def load_state(self, state: dict[str, Any]) -> None:
        self._num_names = state["num_names"]
        first = FIRST_NAME + self._num_names
        self._words = {word: first + rank for rank, word in enumerate(state["words"])}

    def predictions(self, network: nn.Module, batch: ClozeBatch) -> list[dict[str, Any]]:
        """Number of the chosen candidate of each text."""
        chosen = _of_candidates(network(batch), batch).argmax(-1)
        return [{"candidate": int(choice)} for choice in chosen]


def _of_candidates(output: Output, batch: ClozeBatch) -> Tensor:
    """Logits of the candidates, (B, K)."""
    return output.logits[:, 0].float().gather(1, batch.candidates)


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


class ClozeTexts(GeneratedTexts):
    """Passages with a missing name.

    Args:
        books: Books of one part.
        questions: What can be asked in them.
        words: Number of each word that has one.
        stream: Numbers that name this list of texts.
        length: Number of tokens of every text.
        num_names: Number of numbers for names.
        fresh: Share of texts with fresh names.
    """

    def __init__(
        self,
        books: list[Book],
        questions: list[Question],
        words: dict[str, int],
        stream: tuple[int, ...],
        *,
        length: int,
        num_names: int,
        fresh: float,
    ) -> None:
        super().__init__(stream)
        self._books, self._questions, self._words = books, questions, words
        self._length, self._num_names, self._fresh = length, num_names, fresh

    def __getitem__(self, indices: list[int]) -> ClozeBatch:
        if not indices:
            zero = torch.zeros(1, 1, dtype=torch.long)
            candidates = zero.expand(1, CANDIDATES)
            return ClozeBatch(zero, zero.bool(), zero[0] + IGNORE, zero, candidates)
        rows = [self._text(index) for index in indices]
        tokens, candidates = (torch.tensor([row[i] for row in rows]) for i in (0, 1))
        asked = torch.full((len(rows), 1), self._length - 1)
        target = torch.tensor([row[2] for row in rows])
        return ClozeBatch(
            tokens, torch.ones_like(tokens, dtype=torch.bool), target, asked, candidates
        )

    def _text(self, index: int) -> tuple[list[int], list[int], int]:
        """Tokens of one text, of its candidates, and which is right."""
        generator = self.generator(index)
        asked = self._questions[int(generator.integers(len(self._questions)))]
        book = self._books[asked.book]
        part = slice(asked.at - self._length + 1, asked.at)
        pairs = list(zip(book.words[part], book.name[part], strict=True))
        names = dict.fromkeys([*asked.candidates, *(word for word, is_name in pairs if is_name)])
        numbers = self._numbers(list(names), generator)
        order = generator.permutation(CANDIDATES)
        candidates = [numbers[asked.candidates[i]] for i in order]
        tokens = [(numbers if n else self._words).get(w, UNKNOWN) for w, n in pairs]
        return [*tokens, BLANK], candidates, int(np.argmin(order))

    def _numbers(self, names: list[str], generator: np.random.Generator) -> dict[str, int]:
        """Number all names of a text, the candidates differently."""
        if generator.random() < self._fresh:
            drawn = generator.permutation(self._num_names)
        else:  # by spelling; a number that is taken gives way to the next
            drawn = np.array([zlib.crc32(name.encode()) % self._num_names for name in names])
        taken: dict[int, None] = {}
        for rank in range(len(names)):
            number = int(drawn[rank % len(drawn)])
            while number in taken and len(taken) < self._num_names:
                number = (number + 1) % self._num_names
            taken[number] = None
        return {name: FIRST_NAME + number for name, number in zip(names, taken, strict=False)}
