"""The value that a training watches: which one, in which direction, and when to stop by it."""

from __future__ import annotations

from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping

from clusterformer.errors import InputError, require_at_least
from clusterformer.wording import suggested

_BETTER_LOW = ("loss", "perplexity", "bits", "error")


def mode_of(name: str) -> Literal["min", "max"]:
    """Tell whether a low ("min") or a high ("max") value of this name is better."""
    return "min" if any(word in name for word in _BETTER_LOW) else "max"


def monitoring(monitor: str, mode: str, patience: int | None) -> list[Callback]:
    """Make the callbacks that watch a value.

    Args:
        monitor: Name of the logged value.
        mode: Whether a high ("max") or a low ("min") value is better.
        patience: Number of validations without gain after which training stops; None never stops.

    Raises:
        InputError: for a patience below 1.
    """
    require_at_least(1, patience=patience)
    if patience is None:
        return [MonitorCheck(monitor)]
    return [MonitorCheck(monitor), Patience(monitor, patience=patience, mode=mode)]


def validates_after_each_batch(trainer: Trainer) -> bool:
    """Tell whether `trainer.val_check_interval` is one batch.

    Lightning's callbacks take 1 for 1.0, a whole epoch, and look at the last validation alone.
    """
    return isinstance(trainer.val_check_interval, int) and trainer.val_check_interval == 1


class Patience(EarlyStopping):
    """Lightning's callback; its patience is this run's, not that in the checkpoint.

    A run that it has ended stays so when it is resumed, unless with more patience. It has another
    name than Lightning's, or `--trainer.callbacks EarlyStopping` would name two classes.

    Of several validations of the same weights, as within accumulated batches, it counts the first.
    It ends a run behind a step, where `last.ckpt` can be written.
    """

    _validated = _begun = -1  # the global step of the latest validation, and before the batch
    _waiting = False  # for a step, to end the run

    @property
    def state_key(self) -> str:
        """Key of its state in checkpoints, where it has Lightning's name."""
        return super().state_key.replace(type(self).__qualname__, EarlyStopping.__qualname__, 1)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not trainer.limit_val_batches:  # Lightning says so at the end of the first epoch
            raise InputError(
                "patience waits for validations, and trainer.limit_val_batches 0 has none; "
                "add --patience null to train without"
            )
        if validates_after_each_batch(trainer):
            self._check_on_train_epoch_end = False
        super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        if self.wait_count >= self.patience:
            trainer.should_stop = True

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._begun = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._waiting and trainer.global_step != self._begun:
            self._waiting, trainer.should_stop = False, True

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        step, was_ending = trainer.global_step, trainer.should_stop
        if trainer.sanity_checking or step == self._validated:
            return
        self._validated = step
        super().on_validation_end(trainer, pl_module)
        if trainer.should_stop and not was_ending and step == self._begun:
            self._waiting, trainer.should_stop = True, False

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "validated": self._validated}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "patience": self.patience})
        self._validated = state_dict.get("validated", -1)  # older runs have none


class MonitorCheck(Callback):
    """Stops a training whose first validation, or sanity check, logs no value of the given name.

    Args:
        monitor: Name of the logged value.
    """

    def __init__(self, monitor: str) -> None:
        self._monitor = monitor

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        logged: dict[str, Any] = trainer.callback_metrics
        if self._monitor not in logged:
            names = suggested(self._monitor, sorted(n for n in logged if n.startswith("val/")))
            raise InputError(f"--monitor: nothing is logged as {self._monitor!r}; {names}")
