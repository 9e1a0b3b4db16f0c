"""Needles in long texts of books: find the one sentence that answers (after RULER, 2024).

    ... The number of kavo is 48213. ...                      The number of kavo is 48213
    ... Let kavo be 48213. ... Let mide be kavo. ...          The value of mide is 48213

Two such chains of variables stand in a text, so that it does not suffice to find a number. The
sentences stand anywhere in a text of a book of which no other part trains; the question stands
at the end, and the network writes the number, byte by byte.

B batch   N tokens (bytes)   A digits of the answer
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import numpy as np
import torch
from torch import nn
from torchmetrics import MeanMetric, MetricCollection

from clusterformer.data.documents import DocumentSplits, LanguageModelingCorpus
from clusterformer.data.named_sets import SPLITS, Split
from clusterformer.errors import InputError, require_at_least
from clusterformer.models.asked_tokens import AskedTokens
from clusterformer.models.config import TransformerConfig
from clusterformer.task import IGNORE, Output
from clusterformer.tasks.generated.generated_task import AskingBatch, GeneratedTask, GeneratedTexts
from clusterformer.tasks.generated.several_lengths import SeveralLengths, require_sizes

DIGITS = 5
"""A: digits of the number."""

CONSONANTS, VOWELS = "bdfghjklmnprstvz", "aeiou"
CHAINS = 2
"""Chains of variables in a text; one is asked."""

MAX_SENTENCES = (len(CONSONANTS) * len(VOWELS)) ** 2 // 2
"""Half of the names that there are: drawing different ones stays quick."""

_POSITIONS = 512
"""Least number of learned positions; a checkpoint without a length has as many."""


class NeedleState(TypedDict, total=False):
    """State of the task in a checkpoint; older ones lack the length."""

    length: int


class Needle(GeneratedTask):
    """Name the number that one sentence of a long text holds.

    A token is a byte, by its value plus 1. An answer is right if all its digits are.

    Args:
        name: Named set of books, split by books and authors; or give `train` and others.
        root: Folder of the named data sets; $CLUSTERFORMER_DATA or the user's cache by default.
        train: Own training file or folder of texts.
        valid: Own validation file or folder of texts.
        test: Own test file or folder of texts.
        length: Number of bytes of every text (N), question and answer among them.
        form: Form of the sentences: "numbers", one of several keys is asked; or "variables", one of
            two chains of variables is followed to its number.
        needles: Number of sentences in a text, or in each chain: 1 is the single needle.
        also_needles: Other numbers of sentences; every text of training draws one of all numbers
            that its length has room for.
        also_train: Other lengths; every further batch of training has the next of them, and as many
            bytes.
        short_batches: Number of first batches that have the lengths of `also_train` only.
        options: Options of `GeneratedTask`.
    """

    state_type = NeedleState
    sizes = ("length",)

    def __init__(
        self,
        name: LanguageModelingCorpus | None = None,
        *,
        root: str | None = None,
        train: str | None = None,
        valid: str | None = None,
        test: str | None = None,
        length: int = 1024,
        form: Literal["numbers", "variables"] = "numbers",
        needles: int = 1,
        also_needles: list[int] | None = None,
        also_train: list[int] | None = None,
        short_batches: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._documents = DocumentSplits(name, root, {"train": train, "valid": valid, "test": test})
        if form not in ("numbers", "variables"):
            raise InputError(f'form must be "numbers" or "variables", got {form!r}')
        most = MAX_SENTENCES // (CHAINS if form == "variables" else 1)
        self._numbers = [needles, *(also_needles or [])]
        for option, numbers in {"needles": [needles], "also_needles": also_needles or []}.items():
            for number in numbers:
                require_at_least(1, **{option: number})
                if number > most:
                    raise InputError(f"{option} must be at most {most}, got {number}")
        if length < (shortest := _shortest(needles)):
            raise InputError(
                f"length must be at least 64 * (needles + 1) = {shortest}, got {length}"
            )
        require_sizes(short_batches, also_train)
        self._lengths, self._short_batches = [length, *(also_train or [])], short_batches
        self._trained_length = max(self._lengths)  # for learned positions, whatever a test has
        self._length, self._form = length, form
        self._books: dict[Split, np.ndarray] = {}

    @property
    def chance(self) -> float:
        return 10.0**-DIGITS

    @property
    def num_labels(self) -> int:
        return 257

    def texts(self, *stream: int) -> NeedleTexts:
        return self._texts(self._length, self._numbers[:1], stream)

    def train_texts(self, *stream: int) -> SeveralLengths:
        # not before: a test may have other numbers, or another length, than these
        longest = max(self._lengths)
        if longest < (shortest := _shortest(most := max(self._numbers))):
            raise InputError(f"also_needles: {most} need a length of {shortest}, got {longest}")
        parts = []
        for length in self._lengths:
            numbers = [number for number in self._numbers if _shortest(number) <= length]
            if not numbers:
                shortest = _shortest(min(self._numbers))
                raise InputError(f"also_train: a length must be at least {shortest}, got {length}")
            parts.append(self._texts(length, numbers, stream, max(1, self._length // length)))
        return SeveralLengths(parts, self._batch_size, self._short_batches)

    def _texts(
        self, length: int, numbers: list[int], stream: tuple[int, ...], copies: int = 1
    ) -> NeedleTexts:
        book = self._book(SPLITS[stream[0]])
        return NeedleTexts(book, length, self._form, numbers, stream, copies)

    def _book(self, split: Split) -> np.ndarray:
        """Bytes of all texts of a part, one after the other."""
        if split not in self._books:
            text = "\n".join(self._documents.read(split)).encode()
            longest = max(self._lengths) if split == "train" else self._length
            if len(text) < longest:
                where = self._documents.where(split)
                raise InputError(f"{where}: {len(text)} bytes in all, fewer than length {longest}")
            self._books[split] = np.frombuffer(text, dtype=np.uint8)
        return self._books[split]

    def build(self, config: TransformerConfig) -> AskedTokens:
        num_positions = max(_POSITIONS, self._trained_length)
        return AskedTokens(config, vocab_size=257, max_length=num_positions)

    def metrics(self) -> MetricCollection:
        """Share of answers with all digits right, and of right digits."""
        return MetricCollection(
            {"accuracy": MeanMetric(), "digits": MeanMetric()}, compute_groups=False
        )

    def update(
        self, metrics: MetricCollection, output: Output, batch: AskingBatch, network: nn.Module
    ) -> None:
        real = batch.mask.any(-1)
        right = (output.logits.argmax(-1) == batch.target)[real]
        metrics["accuracy"].update(right.all(-1).float())
        metrics["digits"].update(right.float())

    def state(self) -> dict[str, Any]:
        return {"length": self._trained_length}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the longest length of training; bytes need no vocabulary."""
        self._trained_length = state.get("length", _POSITIONS)
        require_at_least(1, length=self._trained_length)

    def predictions(self, network: nn.Module, batch: AskingBatch) -> list[dict[str, Any]]:
        """The number named for each text."""
        found = network(batch).logits.argmax(-1) - 1
        return [{"number": bytes(row.clamp(0, 255).tolist()).decode("latin-1")} for row in found]

    def describe(self, batch: AskingBatch, index: int) -> list[str]:
        """Characters of a text."""
        return [chr(token - 1) for token in batch.tokens[index][batch.mask[index]].tolist()]


class NeedleTexts(GeneratedTexts):
    """Texts with sentences to be found.

    Args:
        book: Bytes from which the text around the sentences is cut.
        length: Number of bytes of every text.
        form: "numbers" or "variables".
        needles: Numbers of sentences in a text, or in each of two chains; a text draws one.
        stream: Numbers that name this list of texts.
        copies: Number of texts that are made from one index.
    """

    def __init__(
        self,
        book: np.ndarray,
        length: int,
        form: str,
        needles: list[int],
        stream: tuple[int, ...],
        copies: int = 1,
    ) -> None:
        super().__init__(stream, copies)
        self._book, self._length, self._form, self._needles = book, length, form, needles

    def __getitem__(self, indices: list[int]) -> AskingBatch:
        if not indices:
            zero = torch.zeros(1, 1, dtype=torch.long)
            target = torch.full((1, DIGITS), IGNORE)
            return AskingBatch(zero, zero.bool(), target, torch.zeros_like(target))
        texts = (self.text(generator) for generator in self.generators(indices))
        rows = np.stack([np.frombuffer(text, dtype=np.uint8) for text in texts])
        whole = torch.from_numpy(rows.astype(np.int64)) + 1  # (B, N + 1), the last digit with it
        tokens, answer = whole[:, :-1], whole[:, -DIGITS:]
        mask = torch.ones_like(tokens, dtype=torch.bool)
        asked = torch.arange(self._length - DIGITS, self._length).expand(len(tokens), -1)
        return AskingBatch(tokens, mask, answer, asked)

    def text(self, generator: np.random.Generator) -> bytes:
        """Make one text: N bytes, and the last digit of the answer behind them."""
        number = self._needles[0]
        if len(self._needles) > 1:
            number = int(generator.choice(self._needles))
        make = self._numbers if self._form == "numbers" else self._chains
        told, question = make(generator, number)
        end = question.encode()
        around = self._length + 1 - len(end) - sum(map(len, told))
        start = int(generator.integers(len(self._book) - around + 1))
        hay = self._book[start : start + around].tobytes()
        cuts = sorted(int(cut) for cut in generator.integers(around + 1, size=len(told)))
        parts = [
            hay[a:b] + sentence.encode()
            for a, b, sentence in zip([0, *cuts[:-1]], cuts, told, strict=True)
        ]
        return b"".join(parts) + hay[cuts[-1] :] + end

    def _numbers(self, generator: np.random.Generator, needles: int) -> tuple[list[str], str]:
        """Sentences in the order of the text, and the question with its answer."""
        names = _names(generator, needles)
        numbers = generator.integers(10 ** (DIGITS - 1), 10**DIGITS, needles)
        wanted = int(generator.integers(needles))
        told = [f" The number of {a} is {b}. " for a, b in zip(names, numbers, strict=True)]
        question = f" The number of {names[wanted]} is {numbers[wanted]}"
        return [told[i] for i in generator.permutation(needles)], question

    def _chains(self, generator: np.random.Generator, needles: int) -> tuple[list[str], str]:
        """The same of chains, each in its order; their sentences alternate at random."""
        names = iter(_names(generator, CHAINS * needles))
        least = 10 ** (DIGITS - 1)
        numbers = least + generator.choice(9 * least, CHAINS, replace=False)
        ends = [str(number) for number in numbers]  # what each chain has come to
        told = []
        for chain in generator.permutation(np.repeat(np.arange(CHAINS), needles)):
            name = next(names)
            told.append(f" Let {name} be {ends[chain]}. ")
            ends[chain] = name
        wanted = int(generator.integers(CHAINS))
        return told, f" The value of {ends[wanted]} is {numbers[wanted]}"


def _shortest(needles: int) -> int:
    """Least number of bytes that have room for the sentences, and for text around them."""
    return 64 * (needles + 1)


def _names(generator: np.random.Generator, count: int) -> list[str]:
    """Different short names, such as kavo."""
    found: dict[str, None] = {}
    while len(found) < count:
        consonants = generator.integers(len(CONSONANTS), size=2)
        vowels = generator.integers(len(VOWELS), size=2)
        letters = zip(consonants, vowels, strict=True)
        found["".join(CONSONANTS[c] + VOWELS[v] for c, v in letters)] = None
    return list(found)
