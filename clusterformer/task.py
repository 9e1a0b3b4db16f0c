"""The protocol between the trainer and a task: data, network head, loss and metrics.

Letters: B batch, N tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lightning.pytorch import LightningDataModule
from torch import Tensor, nn
from torchmetrics import MetricCollection

from clusterformer.errors import InputError
from clusterformer.losses import IGNORE
from clusterformer.models.transformer import Output

if TYPE_CHECKING:
    from clusterformer.attention import Grouping
    from clusterformer.models.config import TransformerConfig

__all__ = ["IGNORE", "Batch", "Output", "StackGroupings", "Task", "TrainingPosition", "stacks"]


class Batch(NamedTuple):
    """The least a batch holds; a task with more declares its own NamedTuple with these names.

    A process whose share of a global batch is empty gets one dummy row: `mask` all False,
    `target` all IGNORE.
    """

    tokens: Tensor  # (B, N) int64
    mask: Tensor  # (B, N) bool, True at real tokens
    target: Tensor  # (B,) or (B, N) int64


class StackGroupings(NamedTuple):
    """The layers of an encoder or decoder: what each grouped, and of which tokens.

    Attributes:
        name: "" of a stack that is alone or the encoder, "decoder/" of a pair's other one.
        groupings: One a layer.
        mask: (B, N), True at real tokens.
    """

    name: str
    groupings: list[Grouping | None]
    mask: Tensor


def stacks(output: Output, batch: Any) -> list[StackGroupings]:
    """Every stack of a network; of a pair, `batch` also has the decoder's `decoder_mask`."""
    found = [StackGroupings("", output.encoded.groupings, batch.mask)]
    if output.decoded is not None:
        found.append(StackGroupings("decoder/", output.decoded.groupings, batch.decoder_mask))
    return found


class TrainingPosition(NamedTuple):
    """Where training stands: the epoch, and the global batches of it already trained on."""

    epoch: int
    batch: int


class Task(LightningDataModule, ABC):
    """Data, head, loss and metrics of one use of the trainer.

    `setup()` reads the data and learns whatever `load_state()` has not brought already
    (vocabulary, labels); after either of them, `build()` can make the network. A checkpoint
    carries `state()`, so prediction needs no data on disk.

    Attributes:
        monitor: The logged value that chooses the best checkpoint.
        mode: Whether more or less of it is better, "max" or "min".
        causal_input: Field of a batch, tokens (B, N), that the network reads from left to right:
            its logits (B, N, ...) may depend on no later token. None: there is none.
    """

    monitor: str = "val/accuracy"
    mode: str = "max"
    causal_input: str | None = None

    @property
    def rank(self) -> int:
        """Number of this process among `world_size`."""
        return self.trainer.global_rank if self.trainer else 0

    @property
    def world_size(self) -> int:
        """Number of processes that share every global batch."""
        return self.trainer.world_size if self.trainer else 1

    @property
    def position(self) -> TrainingPosition:
        """Where the training data has to start; `train_dataloader()` reads it when called.

        The trainer restores its progress from a checkpoint before it asks for the data, so this
        is exact after a kill and independent of what data workers had fetched ahead.
        """
        if not self.trainer:
            return TrainingPosition(0, 0)
        epoch: Any = self.trainer.fit_loop.epoch_progress.current
        batch: Any = self.trainer.fit_loop.epoch_loop.batch_progress.current
        return TrainingPosition(
            epoch.processed, batch.ready if epoch.ready > epoch.processed else 0
        )

    @abstractmethod
    def build(self, config: TransformerConfig) -> nn.Module:
        """Make the network, called as `network(batch) -> Output`, around `config`."""

    @abstractmethod
    def loss(self, output: Output, batch: Any, label_smoothing: float) -> tuple[Tensor, Tensor]:
        """Sum of the losses of this process's examples (differentiable), and how many they are."""

    @abstractmethod
    def metrics(self) -> MetricCollection:
        """Fresh metrics; their names are logged as `val/name` and `test/name`."""

    @abstractmethod
    def update(
        self, metrics: MetricCollection, output: Output, batch: Any, network: nn.Module
    ) -> None:
        """Count the examples of `batch` in `metrics`, leaving out IGNORE.

        Args:
            metrics: Made by `metrics()`.
            output: Output of the network for `batch`.
            batch: Examples with their targets.
            network: Made by `build()`; for a task whose metrics need more than the output, such as
                translations.
        """

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Plain str, int, list, dict and tensor values that prediction needs beside the weights."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Take up what `state()` gave; `setup()` then leaves it as it is."""

    @abstractmethod
    def predictions(self, network: nn.Module, batch: Any) -> list[dict[str, Any]]:
        """One record for each row of `batch`, such as `{"label": "1", "probability": 0.93}`.

        Args:
            network: Made by `build()`, in evaluation mode.
            batch: One of `text_dataloader()`; no target is read.
        """

    def text_dataloader(self, lines: Iterable[str]) -> Iterable[Any]:
        """Batches of user text, in its order, without targets; one row for each line."""
        raise InputError(f"{type(self).__name__} reads no text")

    def predict_dataloader(self) -> Any:
        """Trainer.predict is for texts, which no option of a task brings."""
        raise InputError(
            "Trainer.predict(model, task) has no texts; call "
            "task.predictions(model.network, batch) for each batch of task.text_dataloader(lines)"
        )

    def check_text(self, line: str) -> None:
        """Refuse, by an InputError, a line that `text_dataloader` cannot take."""

    def signatures(self) -> dict[str, str]:
        """How some of the metrics are taken, for those who quote them."""
        return {}

    def baselines(self) -> dict[str, Callable[[], float]]:
        """Simple methods by name; calling one gives its test result, in terms of `monitor`."""
        return {}

    def describe(self, batch: Any, index: int) -> list[str]:
        """The real tokens of row `index` as strings, for pictures."""
        row = batch.tokens[index][batch.mask[index]]
        return [str(token) for token in row.tolist()]

    def alignment(
        self, network: nn.Module, batch: Any, index: int
    ) -> tuple[list[str], Tensor] | None:
        """For pictures: the M tokens written of row `index`, and how they look at the N read.

        Returns:
            The tokens and the weights (M, N); None where nothing is written.
        """
        return None

    def links(self, batch: Any, index: int) -> list[tuple[int, int]]:
        """Pairs of positions in row `index` that belong together, for pictures; none if unknown."""
        return []

    def draw(self, network: nn.Module, folder: Path) -> list[Path]:
        """Draw pictures of the task's own into the folder; return the PNGs."""
        return []
