"""The engine of `fit`: one training into a run directory, and the test of its best checkpoint."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities.model_helpers import is_overridden

from clusterformer.errors import making
from clusterformer.findings import Findings
from clusterformer.models.sharding import whole
from clusterformer.module import ClusterFormer
from clusterformer.task import Task
from clusterformer.training import memory, wandb
from clusterformer.training.beginning import Beginning, refuse_checkpoint, refuse_rare_validation
from clusterformer.training.causality import CausalityProbe
from clusterformer.training.checkpoint_callbacks import (
    BestCheckpoint,
    KeptCheckpoints,
    LastCheckpoint,
)
from clusterformer.training.checkpoints import CHECKPOINT_KEY, CheckpointFiles, read
from clusterformer.training.environment import describe_environment
from clusterformer.training.lost_processes import ProcessWatch
from clusterformer.training.metrics_file import MetricsFile
from clusterformer.training.monitoring import monitoring
from clusterformer.training.pictures import draw_pictures
from clusterformer.training.progress import TrainingClock, progress, steps_an_epoch
from clusterformer.training.runs import OUTCOME, Run
from clusterformer.training.saved import restore
from clusterformer.training.shared_sequences import sequence_size
from clusterformer.training.stopping import Stopping, keyboard_interrupts
from clusterformer.training.trainer_options import (
    check_nodes,
    check_trainer_options,
    refuse_no_time,
    warn_of_slow_bfloat16,
)
from clusterformer.whole_files import naming

_log = logging.getLogger(__name__)


class Fitted(NamedTuple):
    """Outcome of a training.

    Attributes:
        trainer: The trainer, at the end of its work.
        results: Measures of the best checkpoint: its validation result, then those of the test.
        pictures: PNGs in the run directory.
        seconds: Seconds of training, validation included.
        seconds_validating: Seconds of validation.
        findings: Results of the test beyond its measures.
        patience_ended: Whether it ended because validations brought no gain.
    """

    trainer: Trainer
    results: dict[str, float]
    pictures: list[Path]
    seconds: float
    seconds_validating: float
    findings: Findings | None
    patience_ended: bool


def fit(
    model: ClusterFormer,
    task: Task,
    trainer_options: Mapping[str, Any],
    *,
    run: Run | None = None,
    resume: Path | None = None,
    checkpoint_every: int = 500,
    keep: int = 0,
    average: int = 0,
    patience: int | None = None,
    config: Mapping[str, Any] | None = None,
    log_to_wandb: bool = False,
    draw: bool = True,
    callbacks: Sequence[Callback] = (),
) -> Fitted:
    """Train a model, test its best checkpoint, and write the results.

    Every process of a training calls this.

    Args:
        model: Model to train.
        task: Task to train it on.
        trainer_options: Arguments of Lightning's Trainer.
        run: Run directory; None in all processes but the first, and to write nothing.
        resume: Checkpoint to start from; the other processes need it too.
        checkpoint_every: Optimiser steps between two checkpoints within an epoch.
        keep: Number of last and of best validated weights to keep.
        average: Number of last validations, the mean of whose weights is tested instead of the best
            checkpoint, and becomes the result of the run; 0: none.
        patience: Number of validations without gain after which training stops; None: never.
        config: Whole configuration, to write to config.yaml and to log.
        log_to_wandb: Whether to log to Weights & Biases too.
        draw: Whether to draw pictures into the run directory.
        callbacks: Callbacks beside those of every training.

    Raises:
        InputError: if an option, the data or the checkpoint is bad, or the loss is not finite.
        KeyboardInterrupt: if the user stopped the training.
    """
    clock = TrainingClock()
    first_step = _restore(task, resume)
    config = config or {}
    folder = run.checkpoints if run else None
    try:
        if run:
            run.prepare(config)
        last, watch = LastCheckpoint(folder, checkpoint_every), ProcessWatch()
        best = BestCheckpoint(folder, task.monitor, task.mode)
        kept = KeptCheckpoints(folder, task.monitor, task.mode, keep, average)
        trainer = make_trainer(
            trainer_options,
            callbacks=[
                *monitoring(task.monitor, task.mode, patience),
                best,
                kept,
                last,
                CausalityProbe(),
                clock,
                Stopping(last),
                watch,
                Beginning(run, best),
                *callbacks,
            ],
            loggers=_loggers(run, first_step, config, log_to_wandb) if run else [],
        )
        with keyboard_interrupts(trainer), making("options"):
            try:
                trainer.fit(model, datamodule=task, ckpt_path=resume, weights_only=True)
            except Exception as error:
                watch.raise_if_lost(trainer, error)
                refuse_rare_validation(trainer)
                if resume and trainer.global_step <= first_step:
                    refuse_checkpoint(resume, error)
                raise
    finally:
        if run:
            run.cancel()
    with watch.until_the_end(trainer), keyboard_interrupts(trainer):
        return _conclude(trainer, model, task, run, clock, kept, draw)


def make_trainer(
    options: Mapping[str, Any], callbacks: Sequence[Callback] = (), loggers: Sequence[Logger] = ()
) -> Trainer:
    """Make a trainer with our callbacks, loggers and checkpoint files beside those of the options.

    Raises:
        InputError: if Lightning refuses an option.
    """
    options = dict(options)
    ours = {"callbacks": callbacks, "logger": loggers, "plugins": [CheckpointFiles()]}
    for key, added in ours.items():
        given = options.get(key)
        if not isinstance(given, list | tuple):
            given = [] if given is None or isinstance(given, bool) else [given]
        options[key] = [*given, *added]
    has_bar = any(isinstance(callback, ProgressBar) for callback in options["callbacks"])
    if options.get("enable_progress_bar") is not False and not has_bar:
        options["callbacks"].append(progress())
    check_trainer_options(options)
    with making("trainer"):
        trainer = Trainer(**options)
        refuse_no_time(trainer)
        check_nodes(trainer)
    warn_of_slow_bfloat16(trainer)
    return trainer


def _restore(task: Task, resume: Path | None) -> int:
    """Give the task its state in the checkpoint; return the step to go on from."""
    if resume is None:
        return 0
    checkpoint = read(resume, tensors=False)
    restore(task, checkpoint[CHECKPOINT_KEY]["task"], resume)
    return int(checkpoint["global_step"])


def _loggers(run: Run, step: int, config: Mapping[str, Any], log_to_wandb: bool) -> list[Logger]:
    loggers: list[Logger] = [MetricsFile(run.metrics, step)]
    if log_to_wandb:
        loggers.append(wandb.logger(run, config))
    return loggers


def _conclude(
    trainer: Trainer,
    model: ClusterFormer,
    task: Task,
    run: Run | None,
    clock: TrainingClock,
    kept: KeptCheckpoints,
    draw: bool,
) -> Fitted:
    """Test the best checkpoint, write the results and draw the pictures."""
    seconds, seconds_validating = clock.seconds, clock.seconds_validating
    waited = trainer.early_stopping_callback  # the test gives it its state in the best checkpoint
    patience_ended = waited is not None and waited.wait_count >= waited.patience
    held = memory.held(trainer.optimizers)
    results = _test(trainer, model, task, kept)
    if model.findings and model.findings.compared:
        results |= {f"test/{name}": value for name, value in model.findings.measures().items()}
    outcome = {
        "results": dict(sorted(results.items())),
        "monitor": task.monitor,
        "mode": task.mode,
        "steps": trainer.global_step,
        "epochs": trainer.current_epoch,
        "seconds": round(seconds, 2),
        "seconds_validating": round(seconds_validating, 2),
        "seconds_a_step": seconds / max(1, trainer.global_step),
        "steps_an_epoch": steps_an_epoch(trainer),
        "parameters": sum(weight.numel() for weight in model.parameters() if weight.requires_grad),
        "held_mib": round(held, 3),
        "peak_mib": round(memory.peak(model.device), 1),
        "device": str(model.device),
        "environment": describe_environment(),
    }
    if signatures := task.signatures():
        outcome["signatures"] = signatures
    if model.start:
        outcome["init_from"] = model.start._asdict()
    if run and model.findings:
        with naming(run.tested):
            model.findings.write(run.tested)
    try:
        pictures = _show(trainer, model, task, run if draw else None, outcome)
    except Exception:  # it would come again whenever the run is resumed
        if run:
            run.finish(outcome)
        raise
    if run:
        run.finish(outcome)  # last: what is killed before goes on with the test
    return Fitted(
        trainer, results, pictures, seconds, seconds_validating, model.findings, patience_ended
    )


def _show(
    trainer: Trainer,
    model: ClusterFormer,
    task: Task,
    run: Run | None,
    outcome: Mapping[str, Any],
) -> list[Path]:
    """Draw the pictures, unless `run` is None, and log them and the outcome to W&B."""
    assert model.network is not None
    with whole(model.network):  # which the first process runs alone
        pictures = _pictures(run, model, task) if run and sequence_size(trainer) == 1 else []
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger):
            for picture in pictures:
                logger.log_image(f"pictures/{picture.stem}", [str(picture)])
            logger.experiment.summary[OUTCOME] = json.dumps(outcome)
            logger.experiment.finish()
    return pictures


def _test(
    trainer: Trainer, model: ClusterFormer, task: Task, kept: KeptCheckpoints
) -> dict[str, float]:
    """Test the average of the last weights if one is wanted, else the best checkpoint."""
    # not trainer.checkpoint_callback: that is the first one, perhaps of trainer.callbacks
    best = next(one for one in trainer.checkpoint_callbacks if isinstance(one, BestCheckpoint))
    if not best.best_model_path:
        if trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            _log.warning("no validation took place to choose a checkpoint, so none was tested")
        return {}
    results: dict[str, Any] = {task.monitor: best.best_model_score}
    path: str | Path = best.best_model_path
    options: dict[str, Any] = {"verbose": False, "weights_only": True}
    if averaged := kept.write_average(trainer):
        path = averaged
        loggers, trainer.loggers = trainer.loggers, []  # it is no point of the validation curve
        [validated] = trainer.validate(model, task, ckpt_path=path, **options)
        trainer.loggers = loggers
        results[task.monitor] = validated[task.monitor]
    if is_overridden("test_dataloader", task):
        for tested in trainer.test(model, task, ckpt_path=path, **options):  # none of no batches
            results |= tested
    return {name: float(value) for name, value in results.items()}


def _pictures(run: Run, model: ClusterFormer, task: Task) -> list[Path]:
    try:
        with naming(run.pictures):
            return draw_pictures(run, model, task)
    except ImportError as error:
        _log.info("no pictures: %s; pip install 'clusterformer[plots]'", error)
        return []
