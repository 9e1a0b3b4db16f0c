"""Base of the tasks whose texts are generated: they need no data.

B batch   N tokens   A tokens that ask   L labels
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from clusterformer.data.batches import EndlessPlan, make_loader, run_seed
from clusterformer.data.named_sets import SPLITS, Split
from clusterformer.errors import InputError, require_at_least
from clusterformer.losses import cross_entropy
from clusterformer.task import IGNORE, Output
from clusterformer.tasks.split_task import SplitTask

TRAIN, TEST = SPLITS.index("train"), SPLITS.index("test")
"""First number of the stream that a part of the data comes from: its index in `SPLITS`."""


class AskingBatch(NamedTuple):
    """Texts, and the answers to what they ask."""

    tokens: Tensor  # (B, N) int64
    mask: Tensor  # (B, N) bool
    target: Tensor  # (B, A) int64
    asked: Tensor  # (B, A) int64: positions


class GeneratedTexts(Dataset[Any]):
    """Endless texts, each made from its index; a list of indices gives a batch.

    Args:
        stream: Numbers that name this list of texts.
        copies: Number of texts that are made from one index.
    """

    def __init__(self, stream: tuple[int, ...], copies: int = 1) -> None:
        self._stream, self._copies = stream, copies

    def generators(self, indices: list[int]) -> Iterator[np.random.Generator]:
        """Random numbers of each text of a batch."""
        for index in indices:
            yield from [self.generator(index)] * self._copies

    def generator(self, index: int) -> np.random.Generator:
        """Random numbers of one text."""
        return np.random.default_rng([*self._stream, index])


class GeneratedTask(SplitTask):
    """Label tokens of generated texts.

    Training continues with new texts without end; validation and test texts are always the same.
    Subclasses pass their `**options` on to these.

    Args:
        batch_size: Number of texts in a batch, over all processes.
        epoch_steps: Number of batches from one validation to the next.
        valid_texts: Number of validation texts.
        test_texts: Number of test texts.
    """

    def __init__(
        self,
        *,
        batch_size: int = 32,
        epoch_steps: int = 100,
        valid_texts: int = 128,
        test_texts: int = 256,
    ) -> None:
        super().__init__()
        require_at_least(
            1,
            batch_size=batch_size,
            epoch_steps=epoch_steps,
            valid_texts=valid_texts,
            test_texts=test_texts,
        )
        self._batch_size, self._epoch_steps = batch_size, epoch_steps
        self._valid_texts, self._test_texts = valid_texts, test_texts

    @property
    @abstractmethod
    def num_labels(self) -> int:
        """L, number of labels of a token."""

    @abstractmethod
    def texts(self, *stream: int) -> GeneratedTexts:
        """Texts of a stream, by their index."""

    def train_texts(self, *stream: int) -> Dataset[Any]:
        """Texts of a stream, by their index, as training has them: by default `texts`."""
        return self.texts(*stream)

    def loader(self, split: Split) -> DataLoader:
        stream = SPLITS.index(split)
        if split == "train":
            plan = EndlessPlan(self._epoch_steps, self._batch_size)
            return make_loader(self.train_texts(stream, run_seed()), plan, self, training=True)
        size = self._valid_texts if split == "valid" else self._test_texts
        return self.bucketed(split, self.texts(stream), [1] * size, self._batch_size)

    def loss(self, output: Output, batch: Any, label_smoothing: float) -> tuple[Tensor, Tensor]:
        return cross_entropy(output.logits, batch.target, label_smoothing)

    def metrics(self) -> MetricCollection:
        """Accuracy over the tokens that have a label."""
        accuracy = MulticlassAccuracy(self.num_labels, average="micro", ignore_index=IGNORE)
        return MetricCollection({"accuracy": accuracy})

    def update(
        self, metrics: MetricCollection, output: Output, batch: Any, network: nn.Module
    ) -> None:
        metrics["accuracy"].update(output.logits.flatten(0, 1), batch.target.flatten())


def require_as_trained(state: Mapping[str, Any], **options: Any) -> None:
    """Refuse options of a task that differ from those in its checkpoint, and would change a token.

    Raises:
        InputError: for the first such option.
    """
    for name, value in options.items():
        if value != state[name]:
            raise InputError(f"{name} must be {state[name]}, as it was in training, got {value}")
