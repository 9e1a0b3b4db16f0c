"""One training from the command line: run folder, loggers, checkpoints, and its last words."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities.model_helpers import is_overridden

from clusterformer.cli.against import Trained, against, check
from clusterformer.cli.options import Options, take
from clusterformer.errors import InputError
from clusterformer.task import Task
from clusterformer.tasks.language_modeling import LanguageModeling
from clusterformer.tasks.translation import Translation
from clusterformer.training import memory, wandb
from clusterformer.training.causality import CausalityProbe
from clusterformer.training.checkpoints import (
    CHECKPOINT_KEY,
    BestCheckpoint,
    KeptCheckpoints,
    LastCheckpoint,
    read,
)
from clusterformer.training.illustrate import illustrate
from clusterformer.training.metrics_file import MetricsFile
from clusterformer.training.progress import ValidationClock
from clusterformer.training.runs import OUTCOME, Run, first_process


def train(arguments: list[str]) -> None:
    """Train as `clusterformer fit` with these arguments does, and say what came of it."""
    begun = time.monotonic()
    options, trained = _train(arguments)
    if options.config["against"]:
        seconds = time.monotonic() - begun
        against(options, trained, seconds, lambda arguments, name: _train(arguments, name)[1])


def _train(arguments: list[str], name: str | None = None) -> tuple[Options, Trained]:
    """Train into a run folder; one with a name is set against another and says little."""
    resumed, arguments = take(arguments, "--resume")
    run = Run.open(resumed) if resumed else None
    if run:
        arguments = ["--config", str(run.config), *arguments]
    options = Options(arguments, fitting=True)
    check(options)
    model, task = options.model, options.datamodule
    model.config = options.yaml("seed_everything", "model", "data")
    checkpoint: dict[str, Any] = {}
    if run and run.last.exists():
        checkpoint = read(run.last)
        task.load_state(checkpoint[CHECKPOINT_KEY]["task"])
    # the first process alone writes; where checkpoints go, the others learn from it
    if not first_process() or options.config["trainer"]["fast_dev_run"]:
        run = None
    else:
        run = run or Run.create(options.config["runs"], name or options.name)
        run.record(options.yaml(), options.config["seed_everything"])
    begun = time.monotonic()
    path = Run.open(resumed).last if resumed and checkpoint else None
    try:
        trainer = options.make_trainer(
            callbacks=_callbacks(task, run, options),
            loggers=_loggers(options, run, checkpoint.get("global_step", 0)) if run else [],
        )
        with _said_in_one_line():
            trainer.fit(model, datamodule=task, ckpt_path=path, weights_only=True)
    except InputError:
        if run and not resumed:
            run.discard_unless_begun()
        raise
    except SystemExit:
        if not trainer.interrupted or not run:
            raise
        print(f"stopped; go on with: clusterformer fit --resume {run.folder}", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
    seconds = time.monotonic() - begun
    results = _test(options, trainer)
    begun_at = checkpoint.get("global_step", 0)
    outcome = _outcome(options, trainer, results, seconds, begun_at)
    if run:
        run.finish(outcome)
    if run and not name:
        _finish(options, trainer, run, results, time.monotonic() - begun)
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger):
            logger.experiment.summary[OUTCOME] = json.dumps(outcome)
            logger.experiment.finish()
    return options, (task, run, results)


@contextmanager
def _said_in_one_line() -> Iterator[None]:
    """What only the number of batches shows to be wrong among the trainer's options."""
    try:
        yield
    except ValueError as error:
        if "val_check_interval" not in str(error):
            raise
        said = str(error).replace("`", "").strip().partition(". ")[0]
        raise InputError(f"--trainer.{said}") from error


def _test(options: Options, trainer: Trainer) -> dict[str, Any]:
    """Test the best checkpoint."""
    model, task = options.model, options.datamodule
    results: dict[str, Any] = {}
    best = trainer.checkpoint_callback
    if isinstance(best, BestCheckpoint) and best.best_model_path:
        results[task.monitor] = best.best_model_score
        if is_overridden("test_dataloader", task):
            path = best.best_model_path
            results |= trainer.test(model, task, ckpt_path=path, verbose=False, weights_only=True)[
                0
            ]
    return results


def _outcome(
    options: Options, trainer: Trainer, results: dict[str, Any], seconds: float, begun_at: int
) -> dict[str, Any]:
    """What a comparison of runs reads: measures, time, memory and size."""
    weights = (weight.numel() for weight in options.model.parameters() if weight.requires_grad)
    return {
        "results": {key: float(value) for key, value in sorted(results.items())},
        "monitor": options.datamodule.monitor,
        "mode": options.datamodule.mode,
        "steps": trainer.global_step,
        "epochs": trainer.current_epoch,
        "seconds": round(seconds, 2),
        "seconds_validating": round(_validating(trainer), 2),
        "seconds_a_step": seconds / max(1, trainer.global_step - begun_at),
        "parameters": sum(weights),
        "peak_mib": round(memory.peak(options.model.device), 1),
        "device": str(options.model.device),
    }


def _validating(trainer: Trainer) -> float:
    """Seconds of the training that validations took."""
    clocks = (found for found in trainer.callbacks if isinstance(found, ValidationClock))  # type: ignore[attr-defined]
    return sum(clock.seconds for clock in clocks)


def _finish(
    options: Options, trainer: Trainer, run: Run, results: dict[str, Any], seconds: float
) -> None:
    """Draw pictures and say where everything is."""
    pictures = _pictures(run, options)
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger):
            for picture in pictures:
                logger.log_image(f"pictures/{picture.stem}", [str(picture)])
    _say(run, trainer, results, pictures, seconds)


def _callbacks(task: Task, run: Run | None, options: Options) -> list[Callback]:
    folder = run.checkpoints if run else None
    callbacks: list[Callback] = [
        BestCheckpoint(folder, task.monitor, task.mode),
        LastCheckpoint(folder, options.config["checkpoint_every"]),
        KeptCheckpoints(folder, task.monitor, task.mode, options.config["keep"]),
        CausalityProbe(),
        ValidationClock(),
    ]
    if run:
        said = f"run folder: {run.folder}"
        callbacks.append(LambdaCallback(on_train_start=lambda *_: print(said, flush=True)))
    return callbacks


def _loggers(options: Options, run: Run, step: int) -> list[Logger]:
    loggers: list[Logger] = [MetricsFile(run.metrics, step)]
    if options.config["wandb"]:
        loggers.append(wandb.logger(run, options.config.as_dict()))
    return loggers


def _pictures(run: Run, options: Options) -> list[Path]:
    try:
        return illustrate(run, options.model, options.datamodule)
    except ImportError as error:
        print(f"no pictures: {error}; pip install 'clusterformer[plots]'")
        return []


def _say(
    run: Run, trainer: Trainer, results: dict[str, Any], pictures: list[Path], seconds: float
) -> None:
    minutes, seconds = divmod(round(seconds), 60)
    print(
        f"\nfinished after {trainer.global_step} steps, {trainer.current_epoch} epochs, "
        f"{minutes} min {seconds} s, {_validating(trainer):.0f} s of it validation"
    )
    task = trainer.datamodule  # type: ignore[attr-defined]
    said = {name: f"{float(results[name]):.4f}" for name in sorted(results) if "layer" not in name}
    said |= task.signatures()
    said["checkpoint"] = str(run.best if run.best.exists() else run.last)
    said["metrics"] = str(run.metrics)
    if pictures:
        said["pictures"] = f"{run.pictures}: {', '.join(path.name for path in pictures)}"
    width = max(map(len, said))
    for name, what in said.items():
        print(f"  {name:<{width}}  {what}")
    print(f"test it:     clusterformer test --checkpoint {run.folder}")
    if isinstance(task, Translation):
        print(f"translate:   clusterformer translate --checkpoint {run.folder} --input FILE")
    elif isinstance(task, LanguageModeling):
        print(f"go on:       clusterformer generate --checkpoint {run.folder} --prompt TEXT")
    elif is_overridden("text_dataloader", task, Task):
        print(f"label text:  clusterformer predict --checkpoint {run.folder} --input FILE")
