"""The protocol between the trainer and a task: data, network, loss and metrics.

B batch   N tokens   M tokens of the source
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lightning.pytorch import LightningDataModule
from torch import Tensor, nn
from torchmetrics import MetricCollection

from clusterformer.errors import InputError
from clusterformer.findings import Report
from clusterformer.losses import IGNORE
from clusterformer.models.config import TransformerConfig
from clusterformer.models.transformer import Output
from clusterformer.training.shared_sequences import sequence_size

# IGNORE and Output too, so that whoever writes a task finds here what it needs
__all__ = [
    "IGNORE",
    "Batch",
    "InputLine",
    "Output",
    "SimpleResult",
    "Task",
    "TrainingPosition",
]

InputLine = Literal["text", "pair", "recording", "point"]


class Batch(NamedTuple):
    """Fields that every batch has; a task with more declares its own NamedTuple with these names.

    A process whose share of a global batch is empty gets one dummy row: `mask` all False,
    `target` all IGNORE.
    """

    tokens: Tensor  # (B, N) int64
    mask: Tensor  # (B, N) bool, True at real tokens
    target: Tensor  # (B,) or (B, N) int64


class TrainingPosition(NamedTuple):
    """Position of training: the epoch, and the number of its global batches already trained on."""

    epoch: int
    batch: int


class SimpleResult(NamedTuple):
    """Test result of a simple method.

    Attributes:
        measures: Measures by name, without the stage, that of the task's `monitor` among them.
        parameters: Number of trained weights.
    """

    measures: dict[str, float]
    parameters: int


class Task(LightningDataModule, ABC):
    """Data, head, loss and metrics of one use of the trainer.

    `setup()` reads the data, and learns vocabulary and labels unless `load_state()` has restored
    them; after either, `build()` can make the network. A checkpoint holds `state()`, so prediction
    needs no data on disk. The trainer keeps the network and hands it in where a task needs it.

    Attributes:
        monitor: Name of the logged value that chooses the best checkpoint.
        mode: "max" if more of that value is better, else "min".
        causal_input: Name of the field of a batch, tokens (B, N), that the network reads from left
            to right: its logits (B, N, ...) must not depend on later tokens. None if there is none.
        state_type: Type of `state()`, a subclass of TypedDict; that of a checkpoint must fit it.
        sizes: Names in `state()` of bounds of a text, such as its length: they do not change what a
            token means.
        kept_options: Names of options that a trained run keeps: they say what the network reads, or
            the checkpoint holds what was learnt with them.
        decodes: Whether `update` runs the network again, as decoding does, and on some rows only.
        reads: What a line for `predict` is: a text, a pair of texts with a tab between, the path of
            a recording, or the coordinates of a point; None if the task alone knows.
        commands: Commands that use a trained run, by what they do, without the program's name;
            `{run}` stands for the run. `fit` prints them at its end if the task reads lines.
        usage: Python that uses a trained `model` of the task, for the card of an export; "" if it
            reads nothing.
        smooths_labels: Whether its loss is over labels, which `label_smoothing` can smooth.
        reads_pretrained: Whether the network can be a pretrained model of transformers.
        restored: Whether its state, and so the network's weights, come from a checkpoint.
        learnt: The run, a `Learnt`, whose tokenizer `setup()` took; None if there is none.
    """

    monitor: str = "val/accuracy"
    mode: str = "max"
    causal_input: str | None = None
    state_type: Any = dict[str, Any]
    sizes: tuple[str, ...] = ()
    kept_options: tuple[str, ...] = ()
    reads: InputLine | None = None
    commands: Mapping[str, str] = {"label lines": "predict --checkpoint {run} --input FILE"}
    usage: str = ""
    smooths_labels: bool = True
    reads_pretrained: bool = False
    decodes: bool = False
    learnt: Any = None
    restored: bool = False
    _pretrained: str | None = None
    _testing: bool = False

    @property
    def pretrained(self) -> str | None:
        """Name or folder of the pretrained model that the network starts from; None for none.

        The trainer's model tells it; without a trainer it is what was set.
        """
        return self._pretrained if self._model_config is None else self._model_config.pretrained

    @pretrained.setter
    def pretrained(self, name: str | None) -> None:
        if name is not None and not self.reads_pretrained:
            raise InputError(
                f"{type(self).__name__} cannot start from a pretrained model, got {name!r}"
            )
        self._pretrained = name

    @property
    def testing(self) -> bool:
        """Tell whether a test is measured, in which a task may decode with more care.

        The trainer tells it; without a trainer it is what was set.
        """
        return self.trainer.testing if self.trainer else self._testing

    @testing.setter
    def testing(self, testing: bool) -> None:
        self._testing = testing

    @property
    def init_from(self) -> str | None:
        """Run from which the network starts, as the trainer's model tells it; None for none."""
        return None if self._model_config is None else self._model_config.init_from

    @property
    def _model_config(self) -> TransformerConfig | None:
        module = self.trainer.lightning_module if self.trainer else None
        return getattr(module, "transformer_config", None)

    @classmethod
    def saved_tokenizer(cls, state: dict[str, Any]) -> Any:
        """Make the tokenizer in a `state()`, for another task that starts from this one's run.

        None if another task cannot read text with it.
        """
        return None

    @property
    def chance(self) -> float | None:
        """Value of `monitor` by guessing; None where it is not known."""
        return None

    @property
    def rank(self) -> int:
        """Number of this process among `world_size`."""
        return self.trainer.global_rank // sequence_size(self.trainer) if self.trainer else 0

    @property
    def world_size(self) -> int:
        """Number of processes, or of groups that share sequences, that share a global batch."""
        return self.trainer.world_size // sequence_size(self.trainer) if self.trainer else 1

    @property
    def position(self) -> TrainingPosition:
        """Position from which `train_dataloader()` continues.

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
        """Make the network of the task, called as `network(batch) -> Output`."""

    @abstractmethod
    def loss(self, output: Output, batch: Any, label_smoothing: float) -> tuple[Tensor, Tensor]:
        """Sum the losses of this process's examples, differentiably, and count the examples."""

    @abstractmethod
    def metrics(self) -> MetricCollection:
        """Make new metrics; their names are logged as `val/name` and `test/name`."""

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

    def means(self, output: Output, batch: Any) -> dict[str, tuple[Tensor, Tensor]]:
        """Compute further measures that are means, each with the number of things it is over.

        The default has none. One that a mechanism cannot have may be missing.
        """
        return {}

    def report(self) -> Report | None:
        """Make a fresh collector of what a test finds beyond its measures; None for nothing."""
        return None

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Values (str, int, list, dict, tensor) that prediction needs beside the weights."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the values of `state()`; `setup()` then keeps them.

        Types are checked before; what else a file may have wrong, such as sizes, is refused here.
        """

    @abstractmethod
    def predictions(self, network: nn.Module, batch: Any) -> list[dict[str, Any]]:
        """Make a record for each row of `batch`, such as `{"label": "1", "probability": 0.93}`.

        Args:
            network: Made by `build()`, in evaluation mode.
            batch: One of `text_dataloader()`; no target is read.
        """

    def text_dataloader(self, lines: Iterable[str]) -> Iterable[Any]:
        """Make batches of user text, in its order, without targets; one row for each line."""
        raise InputError(f"{type(self).__name__} reads no text")

    def predict_dataloader(self) -> Any:
        """Refuse Trainer.predict: it has no texts."""
        raise InputError(
            "Trainer.predict(model, task) has no texts; call "
            "task.predictions(model.network, batch) for each batch of task.text_dataloader(lines)"
        )

    def check_text(self, line: str) -> None:
        """Raise an InputError for a line that `text_dataloader` cannot take."""

    def signatures(self) -> dict[str, str]:
        """Signatures of metrics, by name, to be quoted beside their values."""
        return {}

    def baselines(self, *, cheap: bool = False) -> dict[str, Callable[[], SimpleResult]]:
        """Simple methods by name; calling one trains it and gives its test result.

        Args:
            cheap: Whether to leave out what takes much more than a minute on these data.
        """
        return {}

    def describe(self, batch: Any, index: int) -> list[str]:
        """Real tokens of row `index` as strings, for pictures."""
        row = batch.tokens[index][batch.mask[index]]
        return [str(token) for token in row.tolist()]

    def alignment(
        self, network: nn.Module, batch: Any, index: int
    ) -> tuple[list[str], Tensor] | None:
        """Attention of the target of row `index` to its source, for pictures.

        Returns:
            The N target tokens as strings, and the weights (N, M) by which they read the source;
            None for a task without targets to read.
        """
        return None

    def links(self, batch: Any, index: int) -> list[tuple[int, int]]:
        """Pairs of positions in row `index` that belong together, for pictures; none if unknown."""
        return []

    def draw(self, network: nn.Module, folder: Path) -> list[Path]:
        """Draw further pictures of the task into `folder`; return the paths of the PNGs."""
        return []
