"""Checks when a training begins, between reading its checkpoint and its first step."""

from __future__ import annotations

import math
from pathlib import Path

from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.seed import isolate_rng

from clusterformer.errors import InputError
from clusterformer.task import Task
from clusterformer.training.checkpoint_callbacks import BestCheckpoint
from clusterformer.training.runs import Run
from clusterformer.training.saved import first_misfit


class Beginning(Callback):
    """A callback that refuses test data and checkpoints that do not fit the training.

    Args:
        run: Run directory to confirm at the first step; None for none.
        best: Callback that keeps the best checkpoint, to be checked.
    """

    def __init__(self, run: Run | None, best: BestCheckpoint) -> None:
        self._run, self._best = run, best

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        task = trainer.datamodule  # type: ignore[attr-defined]
        if is_overridden("test_dataloader", task):
            with isolate_rng():
                task.setup("test")  # so that bad test data are known before the training
                _refuse_empty_test(trainer, task)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        progress, batches = trainer.fit_loop.epoch_loop.batch_progress, trainer.num_training_batches
        if progress.current.ready >= batches and not progress.is_last_batch:
            raise InputError(
                f"the checkpoint stands behind batch {progress.current.ready} within an epoch, "
                f"which has {batches} batches now: the training data or the options of batches "
                "have changed; give those of before, or begin anew with --config"
            )
        self._best.check(trainer)
        if self._run:
            self._run.confirm()


def _refuse_empty_test(trainer: Trainer, task: Task) -> None:
    """Refuse a share of the test data that holds no batch, which Lightning finds in the test."""
    limit = trainer.limit_test_batches
    if isinstance(limit, int) or limit in (0.0, 1.0):
        return
    batches = sized_len(task.test_dataloader())
    if batches is not None and batches * limit < 1:
        raise InputError(
            f"trainer.limit_test_batches must be at least 1/{batches}, as there are {batches} "
            f"batches, got {limit}; 0 tests nothing"
        )


def refuse_rare_validation(trainer: Trainer) -> None:
    """Say which option is wrong where Lightning found an epoch too short to validate within it.

    Raises:
        InputError: if that is so.
    """
    batches, interval = trainer.num_training_batches, getattr(trainer, "val_check_batch", None)
    if trainer.check_val_every_n_epoch and interval is not None and batches < interval < math.inf:
        raise InputError(
            "trainer.val_check_interval must be at most the number of batches of an epoch, "
            f"{batches}, got {interval}; null validates after each epoch"
        )


def refuse_checkpoint(path: Path, error: Exception) -> None:
    """Blame the checkpoint for what fails before the first step after it.

    Raises:
        InputError: unless the error says in one line what is wrong, or is one of the system.
    """
    if isinstance(error, InputError | OSError):
        return
    message = " ".join(str(error).split())
    if "loading state_dict" in message:
        raise InputError(
            f"the checkpoint does not fit the model: {first_misfit(error).rstrip('. ')}; another "
            f"model begins a new run, with what fits: fit --model.init_from {path.parents[1]}"
        ) from error
    raise InputError(
        f"{path}: training does not go on from its state: {type(error).__name__}: {message[:200]} "
        "(CLUSTERFORMER_DEBUG=1 shows more)"
    ) from error
