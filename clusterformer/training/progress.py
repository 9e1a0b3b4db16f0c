"""Progress of a training: a bar on a terminal, otherwise lines; the time it takes."""

from __future__ import annotations

import math
import os
import sys
import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ProgressBar, TQDMProgressBar

from clusterformer.wording import formatted

_SECONDS = 10.0
"""Minimum time between two lines within an epoch, seconds."""


def progress() -> ProgressBar:
    """Make a bar if standard output is a terminal, otherwise lines."""
    # where a terminal has no size, as under some container runners, a bar would stay invisible
    terminal = sys.stdout.isatty() and os.get_terminal_size(sys.stdout.fileno()).lines > 0
    return Bar() if terminal else Lines()


class Bar(TQDMProgressBar):
    """Lightning's bar, without its version number: run directories have their own."""

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        return metrics


class Lines(ProgressBar):
    """A line after each validation and at most every few seconds between."""

    def __init__(self) -> None:
        super().__init__()
        self._written = 0.0
        self._enabled = True

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._written = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if time.monotonic() - self._written >= _SECONDS:
            self._write(trainer, "train/loss")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            task = trainer.datamodule  # type: ignore[attr-defined]
            self._write(trainer, "train/loss", "val/loss", task.monitor)

    def _write(self, trainer: Trainer, *names: str) -> None:
        self._written = time.monotonic()
        if not self._enabled:
            return
        steps, epochs = trainer.max_steps, trainer.max_epochs or 0
        if steps < 0 and epochs > 0:
            steps = epochs * steps_an_epoch(trainer)
        done = trainer.global_step
        share = f"/{steps} ({done / steps:.0%})" if steps > 0 else ""
        values = trainer.callback_metrics
        known = [name for name in dict.fromkeys(names) if name in values]
        shown = [f"{name} {formatted(name, float(values[name]))}" for name in known]
        print(
            f"epoch {trainer.current_epoch + 1}, step {done}{share}: {', '.join(shown)}", flush=True
        )


def steps_an_epoch(trainer: Trainer) -> int:
    """Steps of the optimizer in a whole epoch."""
    return max(1, math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches))


class TrainingClock(Callback):
    """The time of the training loop with its validations, over all starts; data are ready before.

    Attributes:
        seconds_validating: Seconds of all validations, decoding included.
    """

    def __init__(self) -> None:
        self.seconds_validating = 0.0
        self._earlier = 0.0  # seconds of earlier starts
        self._begun: float | None = None
        self._validation = 0.0

    @property
    def seconds(self) -> float:
        """Seconds until now, less those between a start's last checkpoint and its end."""
        return self._earlier + (0.0 if self._begun is None else time.monotonic() - self._begun)

    def state_dict(self) -> dict[str, float]:
        return {"seconds": self.seconds, "seconds_validating": self.seconds_validating}

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        self._earlier = state_dict["seconds"]
        self.seconds_validating = state_dict["seconds_validating"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begun = time.monotonic()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation = time.monotonic()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seconds_validating += time.monotonic() - self._validation
