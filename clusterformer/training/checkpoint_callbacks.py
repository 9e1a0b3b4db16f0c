"""Callbacks that keep checkpoints: the best one, the last few, and the one to resume from."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn

from clusterformer.errors import InputError, require_at_least
from clusterformer.training.checkpoints import AVERAGE, CheckpointFiles, Kept, average, read
from clusterformer.training.metrics_file import write_step
from clusterformer.training.monitoring import validates_after_each_batch
from clusterformer.training.shard_files import remove_shards

_log = logging.getLogger(__name__)


class BestCheckpoint(ModelCheckpoint):
    """A callback that keeps `best.ckpt`, the state with the best validation result.

    Args:
        folder: Folder of the checkpoints; only the first process needs it.
        monitor: Name of the logged value to compare.
        mode: "max" if a high value is best, "min" if a low one is.
    """

    def __init__(self, folder: str | Path | None, monitor: str, mode: str) -> None:
        super().__init__(folder, "best", monitor=monitor, mode=mode, enable_version_counter=False)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if validates_after_each_batch(trainer):
            self._save_on_train_epoch_end = False

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best result so far, also if the run directory was moved.

        `best.ckpt` tells it: that may be of a later step than the checkpoint with this state.
        """
        state_dict = {**state_dict, "dirpath": self.dirpath}
        if state_dict["best_model_path"]:
            path = self.format_checkpoint_name({})
            score = self._score_in(path, state_dict["best_model_score"])
            state_dict |= {
                "best_model_score": score,
                "best_model_path": path,
                "kth_value": score,
                "kth_best_model_path": path,
                "best_k_models": {path: score},
            }
        super().load_state_dict(state_dict)

    def _score_in(self, path: str, default: Any) -> Any:
        try:
            states = read(path, tensors=False)["callbacks"]
        except InputError:  # as `check` says
            return default
        return states.get(self.state_key, {}).get("best_model_score", default)

    def check(self, trainer: Trainer) -> None:
        """Look at the `best.ckpt` of a resumed training, which its test will need.

        Without that file, the best of the validations to come takes its place.

        Raises:
            InputError: if it is damaged.
        """
        if not self.best_model_path:
            return
        path, damage = Path(self.best_model_path), ""
        there = path.is_file()
        if there and trainer.is_global_zero:
            try:
                read(path, tensors=False)
            except InputError as error:
                damage = f"{error}; put a whole one there, or remove it to go on without it"
        there, damage = trainer.strategy.broadcast((there, damage))
        if damage:
            raise InputError(damage)
        if not there:
            _log.warning("%s is not there; the best validation from now on takes its place", path)
            self.best_model_path, self.best_model_score, self.best_k_models = "", None, {}


class KeptCheckpoints(Checkpoint):
    """A callback that keeps the weights after the last few and the best few validations.

    The files themselves are the record of what is kept, so a run can be moved and resumed. Those of
    steps behind the checkpoint from which it is resumed are removed: training repeats these steps.

    Args:
        folder: Folder of the checkpoints; only the first process needs it.
        monitor: Name of the logged value to compare.
        mode: "max" if a high value is best, "min" if a low one is.
        count: Number of last ones, and of best ones, to keep.
        average: Number of last ones that are to be averaged, which are kept as well.
    """

    def __init__(
        self, folder: str | Path | None, monitor: str, mode: str, count: int, average: int = 0
    ) -> None:
        require_at_least(0, keep=count, average=average)
        self._folder, self._monitor, self._mode = folder, monitor, mode
        self._last, self._best, self._averaged = max(count, average), count, average

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._folder = trainer.strategy.broadcast(self._folder)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._last and self._folder is not None and trainer.is_global_zero:
            _remove(one for one in Kept.all(self._folder) if one.step > trainer.global_step)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._last or trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        score = float(trainer.callback_metrics[self._monitor])
        path = Path(str(self._folder)) / f"step{trainer.global_step}_{score:.6g}.ckpt"
        trainer.save_checkpoint(path, weights_only=True)
        if trainer.is_global_zero:
            kept = Kept.all(path.parent)
            wanted = Kept.last(kept, self._last) + Kept.best(kept, self._best, self._mode)
            _remove(one for one in kept if one not in wanted)

    def write_average(self, trainer: Trainer) -> Path | None:
        """Write the mean of the last weights to `average.ckpt`; every process calls this.

        Damaged files are left out with a warning: the training before them is not lost.

        Returns:
            Its path; None if nothing is to be averaged, and an earlier file is removed.
        """
        path = Path(str(self._folder)) / AVERAGE
        whole: list[Path] = []
        if trainer.is_global_zero:
            kept = Kept.last(Kept.all(path.parent), self._averaged) if self._averaged else []
            whole = [one.path for one in kept if _is_whole(one.path)]
            if whole:
                checkpoint = read(whole[-1])
                checkpoint["state_dict"] = average(whole)
                CheckpointFiles().save_checkpoint(checkpoint, path)
            else:
                path.unlink(missing_ok=True)
        return path if trainer.strategy.broadcast(bool(whole)) else None


def _remove(kept: Iterable[Kept]) -> None:
    for one in kept:
        one.path.unlink()
        remove_shards(one.path)


def _is_whole(path: Path) -> bool:
    try:
        read(path)
    except InputError as error:
        _log.warning("%s; left out of the average", error)
        return False
    return True


class LastCheckpoint(Checkpoint):
    """A callback that keeps `last.ckpt`, the state to resume from.

    It is written every few steps and at the end of each epoch, but not between a batch and its
    validation: a run resumed from there would skip the validation. Nor is it within accumulated
    batches, whose gradients are in no file. It stands behind all callbacks of validation.

    Args:
        folder: Folder of the checkpoints; only the first process needs it.
        every: Optimiser steps between two checkpoints within an epoch.

    Attributes:
        dirpath: Folder of the checkpoints, under the name that Lightning's own callbacks have.
        interrupted: Whether the training is to end with the next checkpoint, in KeyboardInterrupt.
    """

    def __init__(self, folder: str | Path | None, every: int) -> None:
        require_at_least(1, checkpoint_every=every)
        self.dirpath = folder
        self.interrupted = False
        self._every = every
        self._saved = self._step = 0
        self._due = self._ending = self._stepped = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.dirpath = trainer.strategy.broadcast(self.dirpath)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved = self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step, loop = trainer.global_step, trainer.fit_loop
        self._stepped, self._step = step != self._step, step
        if not self._stepped:
            trainer.should_stop = False  # max_time asks again after the next batch
            return
        self._ending = trainer.should_stop or step == trainer.max_steps  # after a validation
        if trainer.should_stop and loop._can_stop_early:  # as by max_time, whose callback is late
            trainer.check_val_every_n_epoch = 1
        due = self.interrupted or step - self._saved >= self._every
        if trainer.is_last_batch or self._ending or not due:
            return
        fetcher = loop._data_fetcher
        assert fetcher is not None
        self._due = loop.epoch_loop._should_check_val_fx(fetcher)  # a validation comes first
        if not self._due:
            write_step(trainer)
            self.save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._due and not trainer.sanity_checking:
            self._due = False
            self.save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        stopped = trainer.should_stop and self._stepped  # by patience, in a validation
        if trainer.is_last_batch or self._ending or stopped:
            self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        """Write the state of this step."""
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            trainer.save_checkpoint(Path(str(self.dirpath)) / "last.ckpt")
            self._saved = trainer.global_step
        if self.interrupted:
            raise KeyboardInterrupt
