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
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from clusterformer.errors import InputError, making
from clusterformer.structure import require_structure
from clusterformer.training.shard_files import SHARDS, check_shards, read_whole, unflatten
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
        """Return the `count` with the highest ("max") or lowest ("min") score, in training's order.

        NaN is worst.
        """
        sign = -1 if mode == "max" else 1
        worst = float("inf")
        ranked = sorted(kept, key=lambda one: worst if math.isnan(one.score) else sign * one.score)
        return sorted(ranked[:count])


_KEPT = re.compile(r"step(?P<step>\d+)_(?P<score>nan|-?(inf|\d+(\.\d+)?(e[+-]\d+)?))\.ckpt")
