"""The masked copy task: name each masked symbol by its copy in the other half. Generated.

    input    0 4 M 2 2  0 4 5 M 2        target    0 4 5 2 2  0 4 5 2 2

A word stands twice, a separator before each copy. Some symbols of either half are masked, never
both copies of one, so every masked token can be told by its copy half a text away (Vyas et al.,
2020, appendix C.2).

B batch   N tokens, 2 (length + 1)
"""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np
import torch
from torch import nn

from clusterformer.data.streams import dummy_batch, unpadded_batch
from clusterformer.errors import InputError, require_at_least
from clusterformer.models.config import TransformerConfig
from clusterformer.models.token_classifier import TokenClassifier
from clusterformer.task import IGNORE, Batch
from clusterformer.tasks.generated.generated_task import (
    GeneratedTask,
    GeneratedTexts,
    require_as_trained,
)

_SEPARATOR, _FIRST = 1, 2  # tokens; symbols from _FIRST on, behind them the mask


class MaskedCopyState(TypedDict):
    """State of the task in a checkpoint."""

    length: int
    symbols: int


class MaskedCopy(GeneratedTask):
    """Name the masked symbols of a word that is written twice.

    Loss and accuracy count the masked tokens only: the others stand in the input.

    Args:
        length: Number of symbols of the word; a text has 2 (length + 1) tokens.
        symbols: Number of different symbols.
        masked: Share of all symbols that is masked, above 0 and at most 0.5.
        options: Options of `GeneratedTask`.
    """

    state_type = MaskedCopyState
    sizes = ("length",)

    def __init__(
        self, *, length: int = 63, symbols: int = 10, masked: float = 0.2, **options: Any
    ) -> None:
        super().__init__(**options)
        require_at_least(1, length=length, symbols=symbols)
        self._length, self._symbols = length, symbols
        self._trained_length = length  # for learned positions, whatever a test has
        if not 0 < masked <= 0.5:
            raise InputError(f"masked must be above 0 and at most 0.5, got {masked}")
        self._masked = masked

    @property
    def num_labels(self) -> int:
        return self._mask + 1

    @property
    def _mask(self) -> int:
        return self._symbols + _FIRST

    def texts(self, *stream: int) -> MaskedCopyTexts:
        return MaskedCopyTexts(self._length, self._symbols, self._masked, stream)

    def build(self, config: TransformerConfig) -> TokenClassifier:
        return TokenClassifier(
            config,
            vocab_size=self.num_labels,
            num_labels=self.num_labels,
            max_length=2 * self._trained_length + 2,
        )

    def state(self) -> dict[str, Any]:
        return {"length": self._trained_length, "symbols": self._symbols}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the length of training; words of a test may have any."""
        require_at_least(1, length=state["length"])
        require_as_trained(state, symbols=self._symbols)
        self._trained_length = state["length"]

    def predictions(self, network: nn.Module, batch: Batch) -> list[dict[str, Any]]:
        """Symbols of the masked tokens, in the order of the text."""
        masked = (batch.tokens == self._mask) & batch.mask
        labels = network(batch).logits.argmax(-1)
        return [
            {"symbols": (row[where] - _FIRST + 1).tolist()}
            for row, where in zip(labels, masked, strict=True)
        ]

    def describe(self, batch: Batch, index: int) -> list[str]:
        """Tokens as the paper writes them: 0 separates, M is masked."""
        tokens = batch.tokens[index][batch.mask[index]].tolist()
        return ["M" if token == self._mask else str(token - _SEPARATOR) for token in tokens]

    def links(self, batch: Batch, index: int) -> list[tuple[int, int]]:
        half = self._length + 1
        return [(position, position + half) for position in range(half)]


class MaskedCopyTexts(GeneratedTexts):
    """Texts of the masked copy task.

    Args:
        length: Number of symbols of the word.
        symbols: Number of different symbols.
        masked: Share of all symbols that is masked.
        stream: Numbers that name this list of texts.
    """

    def __init__(self, length: int, symbols: int, masked: float, stream: tuple[int, ...]) -> None:
        super().__init__(stream)
        self._length, self._symbols = length, symbols
        self._num_masked = max(1, round(2 * length * masked))

    def __getitem__(self, indices: list[int]) -> Batch:
        if not indices:
            return dummy_batch()
        texts = np.full((len(indices), 2, self._length + 1), _SEPARATOR, dtype=np.int64)
        hidden = np.zeros_like(texts, dtype=bool)
        for text, hide, index in zip(texts, hidden, indices, strict=True):
            generator = self.generator(index)
            text[:, 1:] = _FIRST + generator.integers(self._symbols, size=self._length)
            positions = 1 + generator.permutation(self._length)[: self._num_masked]
            hide[generator.integers(2, size=len(positions)), positions] = True
        tokens = torch.from_numpy(np.where(hidden, _FIRST + self._symbols, texts)).flatten(1)
        target = torch.from_numpy(np.where(hidden, texts, IGNORE)).flatten(1)
        return unpadded_batch(tokens, target)
