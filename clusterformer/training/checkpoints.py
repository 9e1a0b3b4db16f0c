"""Checkpoints: written whole or not at all, read without executing anything."""

from __future__ import annotations

import math
import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from clusterformer.errors import InputError, making, require_at_least
from clusterformer.structure import require_structure
from clusterformer.training.metrics_file import write_step
from clusterformer.training.shard_files import (
    SHARDS,
    check_shards,
    read_whole,
    remove_shards,
    unflatten,
)
from clusterformer.whole_files import write_tensors

CHECKPOINT_KEY = "clusterformer"
"""Key of a checkpoint that holds our own entries."""


class Entries(TypedDict):
    """Our own entries of a checkpoint.

    Attributes:
        version: Version of clusterformer that wrote it.
        config: Sections `model` and `data` of the configuration, and the seed, as YAML; None where
            the training was started from Python.
        seed: Seed of the training.
        kind: Name of the task's class.
        mode: Whether a high ("max") or a low ("min") validation result is best.
        task: State of the task.
    """

    version: str
    config: str | None
    seed: int
    kind: str
    mode: Literal["max", "min"]
    task: dict[str, Any]


class Contents(TypedDict):
    """Parts of a checkpoint that we read; Lightning checks the others when it restores them."""

    clusterformer: Entries
    state_dict: dict[str, Tensor]
    global_step: int


AVERAGE = "average.ckpt"
"""File of a run with the mean of the weights after its last validations."""


def read(path: str | Path, *, tensors: bool = True) -> dict[str, Any]:
    """Load a checkpoint that `fit` wrote, onto the CPU.

    Its whole structure is checked here, but for the state of the task, of which the task knows.

    Args:
        path: Checkpoint file.
        tensors: Whether to load those too that lie in shards beside the file.

    Raises:
        InputError: if the file is missing, cut short, changed, anything else than such a
            checkpoint, or holds NaN among its weights.
    """
    if not Path(path).is_file():
        raise InputError(f"{path}: no such checkpoint file")
    try:
        with zipfile.ZipFile(path) as archive:  # torch.load does not look at the checksums
            damaged = archive.testzip()
        if damaged:
            raise zipfile.BadZipFile(damaged)
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever the bytes happen to lead to
        raise InputError(
            f"{path}: refused, not a whole checkpoint of plain tensors and values "
            f"({type(error).__name__})"
        ) from error
    if not isinstance(checkpoint, dict) or CHECKPOINT_KEY not in checkpoint:
        raise InputError(f"{path}: refused, clusterformer did not write this file")
    require_structure(checkpoint, Contents, f"{path}: refused, checkpoint")
    if SHARDS in checkpoint:
        if not tensors:
            check_shards(Path(path), checkpoint[SHARDS])
            return checkpoint
        unflatten(checkpoint, read_whole(Path(path), checkpoint.pop(SHARDS)))
    for name, weight in checkpoint["state_dict"].items():
        with making(f"{path}: refused, {name}"):  # sparse or quantised: not every kind can tell
            broken = bool(weight.isnan().any())
        if broken:
            raise InputError(f"{path}: refused, {name} holds NaN")
    return checkpoint


def average(paths: Sequence[str | Path]) -> dict[str, Tensor]:
    """Average the weights of checkpoints of one training, as `load_state_dict` takes them.

    Integer tensors, such as counts, come from the last checkpoint.

    Raises:
        InputError: if there are none, one cannot be read, or they are not of one network.
    """
    if not paths:
        raise InputError("no checkpoints to average")
    first = read(paths[0])["state_dict"]
    total = {name: tensor.double() for name, tensor in first.items()}
    for path in paths[1:]:
        weights = read(path)["state_dict"]
        shapes = {name: tensor.shape for name, tensor in weights.items()}
        if shapes != {name: tensor.shape for name, tensor in first.items()}:
            raise InputError(f"{path}: not of the same network as {paths[0]}")
        for name, tensor in weights.items():
            total[name] = (total[name] if tensor.is_floating_point() else 0) + tensor
    return {
        name: (tensor / len(paths) if first[name].is_floating_point() else tensor).to(
            first[name].dtype
        )
        for name, tensor in total.items()
    }


def last_good(*folders: str | Path) -> Path | str:
    """Find the checkpoint to go on from, else the best one; "none" if the folders have neither."""
    found = (Path(folder, name) for folder in folders for name in ("last.ckpt", "best.ckpt"))
    return next((path for path in found if path.is_file()), "none")


class CheckpointFiles(TorchCheckpointIO):
    """Checkpoint files that are written beside the target, then renamed: a kill leaves a whole one.

    Lightning's own writes to the system's temporary folder and moves, which copies in place where
    that folder is another file system.

    Raises:
        InputError: if the file cannot be written, such as on a full disk; no part of it stays.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike, storage_options: Any = None
    ) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_tensors(target, checkpoint)
        except OSError as error:
            raise InputError(
                f"{target}: the checkpoint cannot be written: {error.strerror}; "
                f"last good checkpoint: {last_good(target.parent)}"
            ) from error

    def load_checkpoint(self, path: str | os.PathLike, *_: Any, **__: Any) -> dict[str, Any]:
        return read(Path(path))


class BestCheckpoint(ModelCheckpoint):
    """A callback that keeps `best.ckpt`, the state with the best validation result.

    Args:
        folder: Folder of the checkpoints; only the first process needs it.
        monitor: Name of the logged value to compare.
        mode: "max" if a high value is best, "min" if a low one is.
    """

    def __init__(self, folder: str | Path | None, monitor: str, mode: str) -> None:
        super().__init__(folder, "best", monitor=monitor, mode=mode, enable_version_counter=False)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best result so far, also if the run directory was moved."""
        state_dict = {**state_dict, "dirpath": self.dirpath}
        if state_dict["best_model_path"]:
            path = self.format_checkpoint_name({})
            state_dict |= {
                "best_model_path": path,
                "kth_best_model_path": path,
                "best_k_models": {path: state_dict["best_model_score"]},
            }
        super().load_state_dict(state_dict)


class Kept(NamedTuple):
    """A checkpoint of weights whose file name holds the step and the validation result."""

    step: int
    score: float
    path: Path

    @classmethod
    def all(cls, folder: str | Path) -> list[Kept]:
        """List those in a folder, in the order of training."""
        found = (_KEPT.fullmatch(path.name) for path in Path(folder).glob("step*.ckpt"))
        return sorted(
            cls(int(name["step"]), float(name["score"]), Path(folder, name[0]))
            for name in found
            if name
        )

    @staticmethod
    def last(kept: list[Kept], count: int) -> list[Kept]:
        """Return the latest `count`."""
        return sorted(kept)[-count:]

    @staticmethod
    def best(kept: list[Kept], count: int, mode: str) -> list[Kept]:
        """Return the `count` with the highest ("max") or lowest ("min") score; NaN is worst."""
        sign = -1 if mode == "max" else 1
        worst = float("inf")
        ranked = sorted(kept, key=lambda one: worst if math.isnan(one.score) else sign * one.score)
        return ranked[:count]


_KEPT = re.compile(r"step(?P<step>\d+)_(?P<score>\S+)\.ckpt")


class KeptCheckpoints(Checkpoint):
    """A callback that keeps the weights after the last few and the best few validations.

    The files themselves are the record of what is kept, so a run can be moved and resumed.

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
            for one in kept:
                if one not in wanted:
                    one.path.unlink()
                    remove_shards(one.path)

    def write_average(self, trainer: Trainer) -> Path | None:
        """Write the mean of the last weights to `average.ckpt`; every process calls this.

        Returns:
            Its path; None if nothing is to be averaged, and an earlier file is removed.
        """
        path = Path(str(self._folder)) / AVERAGE
        kept = Kept.last(Kept.all(path.parent), self._averaged) if self._averaged else []
        if trainer.is_global_zero:
            if kept:
                checkpoint = read(kept[-1].path)
                checkpoint["state_dict"] = average([one.path for one in kept])
                CheckpointFiles().save_checkpoint(checkpoint, path)
            else:
                path.unlink(missing_ok=True)
        trainer.strategy.barrier()
        return path if kept else None


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
        self._due = self._ending = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.dirpath = trainer.strategy.broadcast(self.dirpath)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved = self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step, loop = trainer.global_step, trainer.fit_loop
        stepped, self._step = step != self._step, step
        if not stepped:
            trainer.should_stop = False  # max_time asks again after the next batch
            return
        self._ending = trainer.should_stop or step == trainer.max_steps  # after a validation
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
        if trainer.is_last_batch or self._ending:
            self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        """Write the state of this step."""
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            trainer.save_checkpoint(Path(str(self.dirpath)) / "last.ckpt")
            self._saved = trainer.global_step
        if self.interrupted:
            raise KeyboardInterrupt
