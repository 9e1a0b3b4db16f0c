"""Multi-query associative recall, MQAR (Arora et al., Zoology, 2023). Generated.

A text begins with pairs of a key and a value. Then each key comes once more, somewhere among random
tokens, and there the network names its value. The distances between a pair and its question follow
a power law, as those between repeated words of a language do.

    2 8 4 7 . . 4 . . . . . 2 . .        asked: 4 -> 7, 2 -> 8

By chance a key may stand among the random tokens before its question too, with another token
behind it; the smaller the vocabulary, the more often. Then only its position tells which is meant.

In Zoology's texts a block of two tokens, counted from the first, is a pair. The mean of a block
then holds a key with its value, and no selection is needed. `shifted` moves the pairs by one token.

B batch   N tokens   A pairs
"""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from clusterformer.errors import InputError, require_at_least, require_positive
from clusterformer.models.asked_tokens import AskedTokens
from clusterformer.models.config import TransformerConfig
from clusterformer.task import IGNORE, Output
from clusterformer.tasks.generated.generated_task import (
    AskingBatch,
    GeneratedTask,
    GeneratedTexts,
    require_as_trained,
)
from clusterformer.tasks.generated.several_lengths import SeveralLengths, require_sizes


class RecallState(TypedDict):
    """State of the task in a checkpoint."""

    vocab_size: int
    length: int


class Recall(GeneratedTask):
    """Name the value of each key that comes again.

    The network is a causal language model: mechanisms take their strictly causal form.

    Args:
        length: Number of tokens of every text (N), at least 4 * num_pairs; even.
        num_pairs: Number of pairs (A).
        vocab_size: Number of different tokens (V), above 2 * num_pairs + 1.
        power: Exponent of the power law of distances; 1 for equal chances.
        also_train: Other lengths and numbers of pairs; every further batch of training has the next
            of these sizes, and as many tokens. Zoology trains on several sizes too.
        short_batches: Number of first batches that have the sizes of `also_train` only.
        shifted: Whether a random token stands before the pairs, so that no block of two tokens,
            counted from the first, holds a pair.
        options: Options of `GeneratedTask`.
    """

    state_type = RecallState
    sizes = ("length",)

    def __init__(
        self,
        *,
        length: int = 512,
        num_pairs: int = 64,
        vocab_size: int = 8192,
        power: float = 0.01,
        also_train: list[tuple[int, int]] | None = None,
        short_batches: int = 0,
        shifted: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._also_train = also_train or []
        for size in [(length, num_pairs), *self._also_train]:
            _check_size(*size, vocab_size)
        require_positive(power=power)
        require_sizes(short_batches, also_train)
        self._short_batches = short_batches
        self._length, self._num_pairs = length, num_pairs
        self._vocab_size, self._power, self._shift = vocab_size, power, int(shifted)
        longest = max([length, *(size for size, _ in self._also_train)])
        self._trained_length = longest  # for learned positions, whatever a test has

    @property
    def chance(self) -> float:
        return 1 / (self._vocab_size - self._vocab_size // 2)

    @property
    def num_labels(self) -> int:
        return self._vocab_size

    def texts(self, *stream: int) -> RecallTexts:
        return self._of_size((self._length, self._num_pairs), stream)

    def train_texts(self, *stream: int) -> SeveralLengths:
        sizes = [(self._length, self._num_pairs), *self._also_train]
        parts = [self._of_size(size, stream, max(1, self._length // size[0])) for size in sizes]
        return SeveralLengths(parts, self._batch_size, self._short_batches)

    def _of_size(
        self, size: tuple[int, int], stream: tuple[int, ...], copies: int = 1
    ) -> RecallTexts:
        length, num_pairs = size
        return RecallTexts(
            length, num_pairs, self._vocab_size, self._power, stream, copies, self._shift
        )

    def build(self, config: TransformerConfig) -> AskedTokens:
        return AskedTokens(config, vocab_size=self._vocab_size, max_length=self._trained_length)

    def means(self, output: Output, batch: AskingBatch) -> dict[str, tuple[Tensor, Tensor]]:
        """Accuracy over the questions whose key stands once before them, `accuracy_clear`."""
        clear = _stands_once(batch.tokens, batch.asked) & (batch.target != IGNORE)
        right = (output.logits.argmax(-1) == batch.target) & clear
        number = clear.sum()
        return {"accuracy_clear": (right.sum().float() / number.clamp(min=1), number)}

    def state(self) -> dict[str, Any]:
        return {"vocab_size": self._vocab_size, "length": self._trained_length}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the longest length of training; texts of a test may have any."""
        require_at_least(4, length=state["length"])
        require_as_trained(state, vocab_size=self._vocab_size)
        self._trained_length = state["length"]

    def predictions(self, network: nn.Module, batch: AskingBatch) -> list[dict[str, Any]]:
        """Value of each asked key, in the order of the pairs."""
        return [{"values": row.tolist()} for row in network(batch).logits.argmax(-1)]

    def links(self, batch: AskingBatch, index: int) -> list[tuple[int, int]]:
        first = 1 + self._shift
        return [(2 * pair + first, at) for pair, at in enumerate(batch.asked[index].tolist())]


class RecallTexts(GeneratedTexts):
    """Texts of multi-query associative recall.

    Args:
        length: Number of tokens of every text.
        num_pairs: Number of pairs of a key and a value.
        vocab_size: Number of different tokens.
        power: Exponent of the power law of distances.
        stream: Numbers that name this list of texts.
        copies: Number of texts that are made from one index.
        shift: Number of random tokens before the pairs, 0 or 1.
    """

    def __init__(
        self,
        length: int,
        num_pairs: int,
        vocab_size: int,
        power: float,
        stream: tuple[int, ...],
        copies: int = 1,
        shift: int = 0,
    ) -> None:
        super().__init__(stream, copies)
        self._shift = shift
        self._length, self._num_pairs, self._vocab_size = length, num_pairs, vocab_size
        space = length // 2 - num_pairs  # every other token behind the pairs may ask
        chance = np.arange(1, space + 1) ** (power - 1)
        self._chance = chance / chance.sum()

    def __getitem__(self, indices: list[int]) -> AskingBatch:
        if not indices:
            zero = torch.zeros(1, 1, dtype=torch.long)
            return AskingBatch(zero, zero.bool(), zero + IGNORE, zero)
        pairs, half = self._num_pairs, self._vocab_size // 2
        count, shift = len(indices) * self._copies, self._shift
        end = shift + 2 * pairs
        tokens = np.empty((count, self._length), dtype=np.int64)
        values, asked = (np.empty((count, pairs), dtype=np.int64) for _ in range(2))
        for row, generator in enumerate(self.generators(indices)):
            tokens[row] = generator.integers(1, self._vocab_size, size=self._length)
            keys = 1 + generator.choice(half - 1, pairs, replace=False)
            values[row] = half + generator.choice(self._vocab_size - half, pairs, replace=False)
            gaps = generator.choice(len(self._chance), pairs, replace=False, p=self._chance)
            asked[row] = shift + 2 * (pairs + gaps)
            tokens[row, shift:end:2], tokens[row, shift + 1 : end : 2] = keys, values[row]
            tokens[row, asked[row]] = keys
        found = torch.from_numpy(tokens)
        mask = torch.ones_like(found, dtype=torch.bool)
        return AskingBatch(found, mask, torch.from_numpy(values), torch.from_numpy(asked))


def _stands_once(tokens: Tensor, asked: Tensor) -> Tensor:
    """Tell which questions, at `asked` (B, A), have a key that stands once in tokens before."""
    same = tokens.gather(1, asked)[..., None] == tokens[:, None]  # (B, A, N)
    before = torch.arange(tokens.shape[1], device=tokens.device) < asked[..., None]
    return (same & before).sum(-1) == 1


def _check_size(length: int, num_pairs: int, vocab_size: int) -> None:
    """Refuse texts that cannot hold their pairs and questions, or have too few tokens for them."""
    require_at_least(1, num_pairs=num_pairs)
    if length % 2 or length < 4 * num_pairs:
        raise InputError(
            f"length must be even and at least 4 * num_pairs = {4 * num_pairs}, got {length}"
        )
    if vocab_size < 2 * num_pairs + 2:
        raise InputError(
            f"vocab_size must be at least 2 * num_pairs + 2 = {2 * num_pairs + 2}, got {vocab_size}"
        )
