"""Rows of masked language models: tokens hidden by chance, and two segments that follow or do not.

B batch   N tokens of a row   A masked tokens of a row   T tokens of the stream
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from clusterformer.data.batches import Slices, equal_slices, pad
from clusterformer.data.framed_tokenizers import RowTokenizer
from clusterformer.data.streams import ShiftedWindowPlan
from clusterformer.data.tokenizers import BOS
from clusterformer.task import IGNORE

BLANKS, REPLACED = 0.8, 0.1
"""Shares of the masked tokens that become a blank, or another token by chance; the rest stays."""

TRAINING, EVALUATION = 0, 1
"""Streams of random numbers."""


class MaskedBatch(NamedTuple):
    """Rows with masked tokens."""

    tokens: Tensor  # (B, N) int64, some of them replaced
    mask: Tensor  # (B, N) bool, True at real tokens
    target: Tensor  # (B, A) int64: the tokens that were masked
    asked: Tensor  # (B, A) int64: their positions
    second: Tensor  # (B, N) bool, True at tokens of a second segment
    follows: Tensor  # (B,) int64: 1 if the second segment follows the first one in the text, else 0


class NumberedWindowPlan(ShiftedWindowPlan):
    """The windows of `ShiftedWindowPlan`, with numbers that differ between epochs too.

    A number names the random draws of its window: number % T is the offset.
    """

    def batches(self, epoch: int) -> Slices:
        """Return the global batches of `epoch`: the number of each window."""
        return equal_slices(epoch * self._total + self._starts(epoch), self._batch_size)


class MaskedRows(Dataset[MaskedBatch]):
    """Rows of running text with masked tokens; a list of numbers gives a batch.

    Of the ordinary tokens of a row a share is masked (Devlin et al., 2019, section 3.1): of these
    80 % become a blank, 10 % another token, 10 % stay. All draws follow from the seed and the
    row's number, so a row is the same in every process and after every resume.

    Args:
        stream: Tokens (T,), taken as a circle.
        tokenizer: Tokenizer with the special tokens.
        context: N.
        seed: Numbers that name the random draws.
        share: Share of masked tokens.
        next_sentence: Whether a row has two segments, the second of which comes from another part
            of the text in half of the rows.
        in_turn: Whether numbers count rows from the start of the stream, and not tokens. What the
            last row reads from the start again is not masked there, as the first row did it.
    """

    def __init__(
        self,
        stream: NDArray[np.integer],
        tokenizer: RowTokenizer,
        context: int,
        *,
        seed: tuple[int, ...],
        share: float = 0.15,
        next_sentence: bool = False,
        in_turn: bool = False,
    ) -> None:
        self._stream, self._tokenizer = stream, tokenizer
        self._width = row_width(len(stream), context, next_sentence)
        self._seed, self._share, self._pairs, self._in_turn = seed, share, next_sentence, in_turn

    def __getitem__(self, numbers: list[int]) -> MaskedBatch:
        if not numbers:
            zero = torch.zeros(1, 1, dtype=torch.long)
            ignored = zero + IGNORE
            return MaskedBatch(zero, zero.bool(), ignored, zero, zero.bool(), ignored[0])
        rows = [self._row(number) for number in numbers]
        tokens, mask = pad([row.tokens for row in rows])
        asked, real = pad([row.asked for row in rows])
        target, _ = pad([row.target for row in rows])
        second = torch.from_numpy(np.stack([row.second for row in rows]))
        follows = torch.tensor([row.follows for row in rows])
        return MaskedBatch(tokens, mask, target.masked_fill(~real, IGNORE), asked, second, follows)

    def _row(self, number: int) -> _Row:
        rng = np.random.default_rng([*self._seed, number])
        width = self._width
        first = number * width if self._in_turn else number
        unread = len(self._stream) - first if self._in_turn else width
        frame, follows = self._tokenizer.single, IGNORE
        if not self._pairs:
            texts = [self._read(first, width)]
        else:
            frame = self._tokenizer.pair
            cut = int(rng.integers(max(1, width // 4), max(1, width - width // 4) + 1))
            follows = int(rng.integers(2))
            second = first + cut if follows else int(rng.integers(len(self._stream)))
            texts = [self._read(first, cut), self._read(second, width - cut)]
        row = np.array(frame.around(*texts))
        is_second = np.arange(len(row)) >= frame.second_start(texts[0], row.tolist())
        offset = np.arange(len(row)) - is_second - 1  # in the text of the row
        asked = self._choose(row, offset < unread, rng)
        target = row[asked]
        self._hide(row, asked, rng)
        return _Row(row, is_second, asked, target, follows)

    def _read(self, first: int, count: int) -> list[int]:
        return self._stream[np.arange(first, first + count) % len(self._stream)].tolist()

    def _choose(
        self, row: NDArray[np.int64], allowed: NDArray[np.bool_], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Choose the positions to mask, in their order."""
        ordinary = np.flatnonzero((row > BOS) & (row < self._tokenizer.inner.vocab_size) & allowed)
        count = min(len(ordinary), max(1, round(self._share * len(ordinary))))
        return np.sort(rng.choice(ordinary, count, replace=False))

    def _hide(
        self, row: NDArray[np.int64], asked: NDArray[np.int64], rng: np.random.Generator
    ) -> None:
        """Replace the masked tokens, in place."""
        drawn = rng.random(len(asked))
        others = rng.integers(BOS + 1, self._tokenizer.inner.vocab_size, len(asked))
        row[asked] = np.select(
            [drawn < BLANKS, drawn < BLANKS + REPLACED],
            [np.full(len(asked), self._tokenizer.blank), others],
            row[asked],
        )


class _Row(NamedTuple):
    tokens: NDArray[np.int64]
    second: NDArray[np.bool_]
    asked: NDArray[np.int64]
    target: NDArray[np.int64]
    follows: int


def row_width(total: int, context: int, next_sentence: bool) -> int:
    """Number of tokens of running text in a row of `context` tokens."""
    return min(total, context - (3 if next_sentence else 2))
