"""What commands on a checkpoint share: a trained model, from the checkpoint alone."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from clusterformer.cli.options import Options, take
from clusterformer.errors import InputError
from clusterformer.module import ClusterFormer
from clusterformer.training.checkpoints import CHECKPOINT_KEY, Kept, average, read
from clusterformer.training.runs import Run, first_process


class Trained(NamedTuple):
    """A checkpoint, its path, and the model and task (in `options`) that it describes."""

    path: Path
    checkpoint: dict[str, Any]
    options: Options


def load(arguments: list[str]) -> Trained:
    """Build model and task as the checkpoint after `--checkpoint` says, other arguments on top.

    Raises:
        InputError: without `--checkpoint`, or with a file that is not such a checkpoint.
    """
    given, arguments = take(arguments, "--checkpoint")
    which, arguments = take(arguments, "--average")
    if given is None:
        raise InputError("give --checkpoint, a run folder or a .ckpt file")
    path = Path(given)
    if path.is_dir():
        run = Run.open(path)
        path = run.best if run.best.exists() else run.last
    checkpoint = read(path)
    ours = checkpoint[CHECKPOINT_KEY]
    if ours["config"] is None:
        raise InputError(f"{path}: written from Python, so it does not say how to build the model")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(ours["config"])
        file.flush()
        options = Options(["--config", file.name, *arguments], fitting=False)
    kind = type(options.datamodule).__name__
    if ours.get("kind", kind) != kind:
        raise InputError(f"{path}: a checkpoint of {ours['kind']}, not of {kind}")
    options.datamodule.load_state(ours["task"])
    if which is not None:
        paths = _kept(Run.open(given), which, options.datamodule.mode)
        checkpoint["state_dict"] = average(paths)
    return Trained(path, checkpoint, options)


def _kept(run: Run, which: str, mode: str) -> list[Path]:
    """The kept checkpoints that `--average` means."""
    found = re.fullmatch(r"(best:)?([1-9]\d*)", which)
    if not found:
        raise InputError(f"--average takes N for the last N or best:N, got {which!r}")
    best, count = found[1], int(found[2])
    kept = Kept.all(run.checkpoints)
    if len(kept) < count:
        raise InputError(
            f"--average {which}: {run.checkpoints} holds the weights of {len(kept)} validations; "
            f"train with --keep {count}"
        )
    chosen = Kept.best(kept, count, mode) if best else Kept.last(kept, count)
    return [one.path for one in chosen]


def ready(trained: Trained, device: str | None = None) -> ClusterFormer:
    """The model with its weights, in evaluation mode on `device`; None: cuda where there is one.

    Raises:
        InputError: for a device that is neither cpu nor cuda, or is not there.
    """
    if device not in (None, "cpu", "cuda"):
        raise InputError(f"--device is cpu or cuda, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: there is no CUDA device")
    model = trained.options.model
    model.network = trained.options.datamodule.build(model.transformer_config)
    try:
        model.load_state_dict(trained.checkpoint["state_dict"])
    except RuntimeError as error:
        first = str(error).partition("\n\t")[2].partition("\n")[0]
        raise InputError(f"{trained.path}: its weights do not fit the model: {first}") from error
    return model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()


def evaluate(arguments: list[str], stage: Literal["validate", "test"]) -> None:
    """Measure a trained model and print each result on a line of its own."""
    trained = load(arguments)
    trainer = trained.options.make_trainer([], [])
    measure = trainer.validate if stage == "validate" else trainer.test
    results = measure(ready(trained, "cpu"), trained.options.datamodule, verbose=False)
    if first_process():
        for name, value in sorted(results[0].items()):
            print(f"{name}\t{value:.4f}")
        for name, signature in trained.options.datamodule.signatures().items():
            print(f"{name}\t{signature}")
