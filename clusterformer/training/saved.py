"""Configuration, task and weights of a checkpoint, checked once, when it is loaded."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn

from clusterformer.errors import InputError, making
from clusterformer.module import ClusterFormer
from clusterformer.structure import require_structure
from clusterformer.task import Task
from clusterformer.training.checkpoints import CHECKPOINT_KEY, Kept, average, read
from clusterformer.training.exported import is_exported, read_exported
from clusterformer.training.parser import instantiate, make_parser
from clusterformer.training.runs import Run
from clusterformer.training.trusted import sections_of

_log = logging.getLogger(__name__)


class Saved(NamedTuple):
    """The part of a checkpoint that prediction needs.

    Attributes:
        path: Checkpoint file.
        config: Its sections `model` and `data`, and the seed. No other section is used: a
            checkpoint chooses no trainer, no callback and no folder.
        kind: Name of the task's class.
        state: State of the task, such as its vocabulary and labels.
        weights: Weights of the model by name.
        mode: Whether a high ("max") or a low ("min") value chose the best one.
    """

    path: Path
    config: dict[str, Any]
    kind: str
    state: dict[str, Any]
    weights: dict[str, Tensor]
    mode: str


def open_saved(run: str | Path, trust: Sequence[str] = ()) -> Saved:
    """Read the chosen checkpoint of a run, a checkpoint file or an export, and check it.

    A file must not choose what is imported. So its classes must be those of clusterformer, or of a
    module that the program has already imported, or of a package in `trust`.

    Args:
        run: Run directory, `.ckpt` file, or folder that `clusterformer export` wrote.
        trust: Other modules or packages that may be imported, such as "mypackage".

    Raises:
        InputError: if it is no run and no checkpoint of `fit`, or a class is not trusted.
    """
    path = _checkpoint(Path(run))
    checkpoint = read_exported(path) if path.is_dir() else read(path)
    ours = checkpoint[CHECKPOINT_KEY]
    if ours["config"] is None:
        raise InputError(f"{path}: written from Python, so it does not say how to build the model")
    sections = sections_of(ours["config"], path, trust)
    config = {"seed_everything": ours["seed"], **sections}
    weights = dict(checkpoint["state_dict"])
    return Saved(path, config, ours["kind"], ours["task"], weights, ours["mode"])


def restore(task: Task, state: dict[str, Any], path: Path) -> None:
    """Give a task its state in a checkpoint.

    Raises:
        InputError: if it is no state of such a task.
    """
    require_structure(state, task.state_type, f"{path}: refused, task")
    with making(f"{path}: refused, task"):
        task.load_state(state)
    task.restored = True


def make(saved: Saved) -> tuple[ClusterFormer, Task]:
    """Make the module and the task that the configuration of a checkpoint describes.

    Raises:
        InputError: if it describes none; with the file.
    """
    parser = make_parser()
    sections = {name: saved.config[name] for name in ("model", "data")}
    try:
        with isolate_rng():
            made = instantiate(parser, parser.parse_object(sections))
    except InputError as error:
        raise InputError(f"{saved.path}: {error}") from error
    return made.model, made.data


def fill(saved: Saved, module: ClusterFormer, task: Task) -> nn.Module:
    """Give a task its state, and a module its network with the weights of a checkpoint.

    Returns:
        The network.

    Raises:
        InputError: if state or weights do not fit.
    """
    restore(task, saved.state, saved.path)
    with making(f"{saved.path}: refused"), isolate_rng():
        module.network = network = task.build(module.transformer_config)
    try:
        module.load_state_dict(saved.weights)
    except RuntimeError as error:
        raise InputError(
            f"{saved.path}: its weights do not fit the model: {first_misfit(error)}"
        ) from error
    return network


def first_misfit(error: Exception) -> str:
    """Cut out the first of the weights that `load_state_dict` complains of."""
    return str(error).partition("\n\t")[2].partition("\n")[0]


def checkpoint_to_resume(run: Run) -> Path | None:
    """Find the checkpoint from which a run goes on: the last one, or the best if that is damaged.

    Returns:
        The file; None where no checkpoint was written yet.

    Raises:
        InputError: if there are checkpoints, and none of them is whole.
    """
    damage: list[str] = []
    for path in (run.last, run.best):
        if not path.exists():
            continue
        try:
            step = read(path, tensors=False)["global_step"]
        except InputError as error:
            damage.append(str(error))
            continue
        if damage:
            _log.warning("%s; going on from the last good one, %s, step %d", damage[0], path, step)
        return path
    if damage:
        raise InputError(
            f"{damage[0]}; no other checkpoint is whole: begin anew with --config {run.config}"
        )
    return None


def averaged(run: str | Path, which: str, mode: str) -> dict[str, Tensor]:
    """Average the weights that a training with `--keep` kept.

    Args:
        run: Run directory.
        which: "N" for the last N validations, "best:N" for the best N.
        mode: Whether a high ("max") or a low ("min") result is best.

    Raises:
        InputError: if `which` is neither, or the run kept fewer.
    """
    found = re.fullmatch(r"(best:)?([1-9]\d*)", which)
    if not found:
        raise InputError(f"average is N for the last N or best:N, got {which!r}")
    best, count = found[1], int(found[2])
    folder = Run.open(run).checkpoints
    kept = Kept.all(folder)
    if len(kept) < count:
        raise InputError(
            f"average {which}: {folder} holds the weights of {len(kept)} validations; "
            f"train with --keep {count}"
        )
    chosen = Kept.best(kept, count, mode) if best else Kept.last(kept, count)
    return average([one.path for one in chosen])


def _checkpoint(path: Path) -> Path:
    if not path.exists():
        raise InputError(f"{path}: no such run directory or checkpoint file")
    if not path.is_dir() or is_exported(path):
        return path
    if (path / "config.json").is_file() and not (path / "config.yaml").is_file():
        raise InputError(
            f"{path}: a model of transformers, no run; load it with transformers, or with "
            "clusterformer.huggingface.load if `convert` or `attach` gave it a mechanism"
        )
    return Run.open(path).chosen
