"""The masked copy task: fill in what is masked here from where it stands there. Generated.

    input    0 4 M 2 2  0 4 5 M 2        target    0 4 5 2 2  0 4 5 2 2

A word w of L symbols stands twice, a separator before each. Some symbols of either half are masked,
never both copies of one, so that every token can be told by its twin half a text away
(Vyas et al., 2020, appendix C.2).

Letters: B batch, N = 2 (L + 1) tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from clusterformer.data.batches import BucketPlan, EndlessPlan, make_loader, run_seed
from clusterformer.data.streams import dummy_batch, unpadded_batch
from clusterformer.errors import InputError
from clusterformer.losses import cross_entropy
from clusterformer.models.config import TransformerConfig
from clusterformer.models.token_classifier import TokenClassifier
from clusterformer.task import IGNORE, Batch, Output, Task

_TRAIN, _VALID, _TEST = 0, 1, 2
_SEPARATOR, _FIRST = 1, 2  # tokens; symbols from _FIRST on, behind them the mask


class MaskedCopy(Task):
    """Name the masked symbols of a word that is written twice.

    Training goes on with new texts for ever; validation and test texts are always the same.
    Loss and accuracy are over the masked tokens alone: the others stand in the input.

    Args:
        length: L, symbols of the word; a text has 2 (L + 1) tokens.
        symbols: Symbols to tell apart.
        masked: Share of all symbols that is masked, above 0 and at most 0.5.
        batch_size: Texts a batch, over all processes.
        epoch_steps: Batches from one validation to the next.
        valid_texts: Texts that validate.
        test_texts: Texts that test.
    """

    def __init__(
        self,
        *,
        length: int = 63,
        symbols: int = 10,
        masked: float = 0.2,
        batch_size: int = 32,
        epoch_steps: int = 100,
        valid_texts: int = 128,
        test_texts: int = 256,
    ) -> None:
        super().__init__()
        for option, value in (
            ("length", length),
            ("symbols", symbols),
            ("batch_size", batch_size),
            ("epoch_steps", epoch_steps),
            ("valid_texts", valid_texts),
            ("test_texts", test_texts),
        ):
            if value < 1:
                raise InputError(f"{option} must be at least 1, got {value}")
        if not 0 < masked <= 0.5:
            raise InputError(f"masked must be above 0 and at most 0.5, got {masked}")
        self._length, self._symbols, self._masked = length, symbols, masked
        self._batch_size, self._epoch_steps = batch_size, epoch_steps
        self._valid_texts, self._test_texts = valid_texts, test_texts

    def train_dataloader(self) -> DataLoader:
        plan = EndlessPlan(self._epoch_steps, self._batch_size)
        return make_loader(self._copies(_TRAIN, run_seed()), plan, self, training=True)

    def val_dataloader(self) -> DataLoader:
        return self._evaluation(_VALID, self._valid_texts)

    def test_dataloader(self) -> DataLoader:
        return self._evaluation(_TEST, self._test_texts)

    def _evaluation(self, stream: int, size: int) -> DataLoader:
        plan = BucketPlan([1] * size, batch_size=self._batch_size, shuffle=False)
        return make_loader(self._copies(stream), plan, self)

    def _copies(self, *stream: int) -> CopyDataset:
        return CopyDataset(self._length, self._symbols, self._masked, stream)

    def build(self, config: TransformerConfig) -> TokenClassifier:
        tokens = self._symbols + _FIRST + 1
        return TokenClassifier(
            config, vocab_size=tokens, num_labels=tokens, max_length=2 * self._length + 2
        )

    def loss(self, output: Output, batch: Batch, label_smoothing: float) -> tuple[Tensor, Tensor]:
        return cross_entropy(output.logits, batch.target, label_smoothing)

    def metrics(self) -> MetricCollection:
        size = self._symbols + _FIRST + 1
        return MetricCollection(
            {"accuracy": MulticlassAccuracy(size, average="micro", ignore_index=IGNORE)}
        )

    def update(
        self, metrics: MetricCollection, output: Output, batch: Batch, network: nn.Module
    ) -> None:
        metrics.update(output.logits.flatten(0, 1), batch.target.flatten())

    def state(self) -> dict[str, Any]:
        return {"length": self._length, "symbols": self._symbols}

    def load_state(self, state: dict[str, Any]) -> None:
        self._length, self._symbols = state["length"], state["symbols"]

    def predictions(self, network: nn.Module, batch: Batch) -> list[dict[str, Any]]:
        """The symbols named for the masked tokens, in the order of the text."""
        asked = batch.tokens == self._symbols + _FIRST
        return [
            {"symbols": (named[where] - _FIRST + 1).tolist()}
            for named, where in zip(
                network(batch).logits.argmax(-1), asked & batch.mask, strict=True
            )
        ]

    def describe(self, batch: Batch, index: int) -> list[str]:
        """As the paper writes it: 0 separates, M is masked."""
        mask = self._symbols + _FIRST
        tokens = batch.tokens[index][batch.mask[index]].tolist()
        return ["M" if token == mask else str(token - _SEPARATOR) for token in tokens]

    def links(self, batch: Batch, index: int) -> list[tuple[int, int]]:
        half = self._length + 1
        return [(place, place + half) for place in range(half)]


class CopyDataset(Dataset[Batch]):
    """Texts made from their index; a list of indices gives a batch.

    Args:
        length: L.
        symbols: How many there are.
        masked: Share of all symbols that is masked.
        stream: Numbers that name this endless list of texts.
    """

    def __init__(self, length: int, symbols: int, masked: float, stream: tuple[int, ...]) -> None:
        self._length, self._symbols, self._stream = length, symbols, stream
        self._num_masked = max(1, round(2 * length * masked))

    def __getitem__(self, indices: list[int]) -> Batch:
        if not indices:
            return dummy_batch()
        texts = np.full((len(indices), 2, self._length + 1), _SEPARATOR, dtype=np.int64)
        hidden = np.zeros_like(texts, dtype=bool)
        for text, hide, index in zip(texts, hidden, indices, strict=True):
            rng = np.random.default_rng([*self._stream, index])
            text[:, 1:] = _FIRST + rng.integers(self._symbols, size=self._length)
            places = 1 + rng.permutation(self._length)[: self._num_masked]
            hide[rng.integers(2, size=len(places)), places] = True
        tokens = torch.from_numpy(np.where(hidden, _FIRST + self._symbols, texts)).flatten(1)
        target = torch.from_numpy(np.where(hidden, texts, IGNORE)).flatten(1)
        return unpadded_batch(tokens, target)
