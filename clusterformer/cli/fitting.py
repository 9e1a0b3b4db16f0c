"""One training from the command line: the run directory, and the summary at the end."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback
from lightning.pytorch.utilities.model_helpers import is_overridden

from clusterformer.cli.options import Options
from clusterformer.compare.configs import flatten
from clusterformer.compare.tables import aligned
from clusterformer.errors import InputError, making
from clusterformer.task import Task
from clusterformer.training.as_trained import (
    refuse_former_parts,
    refuse_other_options,
    refuse_other_split,
    refuse_other_validation,
)
from clusterformer.training.checkpoints import read
from clusterformer.training.config_files import read_yaml, to_yaml
from clusterformer.training.fit import Fitted, fit
from clusterformer.training.loop_progress import continue_epoch
from clusterformer.training.mechanism_defaults import MECHANISMS
from clusterformer.training.runs import Run, first_process
from clusterformer.training.selection import selected_nothing
from clusterformer.training.simple_method import fit_simple
from clusterformer.training.trusted import foreign_packages
from clusterformer.wording import counted, duration, formatted

_LINES = {
    "point": "a point a line: numbers with spaces, commas or tabs",
    "pair": "a pair a line, with a tab between its texts",
}  # of FILE, where it is not just a text a line


class FittedRun(NamedTuple):
    """The run directory, None in all processes but the first, and the outcome of a training."""

    run: Run | None
    fitted: Fitted


def fit_run(
    options: Options,
    resumed: Run | None = None,
    resume: Path | None = None,
    name: str | None = None,
) -> FittedRun:
    """Train as the options say.

    Args:
        options: Options of `fit`.
        resumed: Run to go on with.
        resume: Its checkpoint to go on from.
        name: Name of a new run that is compared with another one: neither pictures nor a summary.
    """
    config = options.resolved()
    changed: list[str] = []
    if resumed and resume:
        resumed.refuse_edited(config["data"])
        _refuse_other_seed(config, resumed)
        _refuse_other_data(options, config, resumed)
        changed = _changed_options(config, resumed)
    model, task = options.model, options.task
    sections = ("seed_everything", "model", "data")
    model.config = to_yaml({section: config[section] for section in sections})
    writes = first_process() and not config["trainer"]["fast_dev_run"]
    run = resumed or Run.create(config["runs"], name or options.name) if writes else None
    try:
        with run.locked() if run else nullcontext():
            fitted = fit(
                model,
                task,
                options.trainer_options,
                run=run,
                resume=resume,
                checkpoint_every=config["checkpoint_every"],
                keep=config["keep"],
                average=config["average"],
                patience=config["patience"],
                config=config,
                log_to_wandb=config["wandb"],
                draw=name is None and config["pictures"],
                callbacks=[_announcement(run, changed)] if run else [],
            )
    except KeyboardInterrupt:
        if run:
            whole = run.folder.parents[2] if name else run.folder  # RUN/against/NAME/NUMBER
            command = f"clusterformer fit --resume {shlex.quote(str(whole))}"
            print(f"stopped; go on with: {command}", file=sys.stderr)
        raise
    if run and name is None:
        _summarise(run, task, fitted)
        validated = {name: float(value) for name, value in fitted.trainer.callback_metrics.items()}
        if line := selected_nothing(model, validated | fitted.results):
            print(line)
    return FittedRun(run, fitted)


def fit_method(options: Options, resumed: Run | None) -> None:
    """Train a simple method of the task instead of the network, as the options say.

    Of several processes one trains.

    Args:
        options: Options of `fit`, with a method.
        resumed: Run directory of an earlier attempt.
    """
    if not first_process():
        return
    config = options.resolved()
    run = resumed or Run.create(config["runs"], options.name)
    with run.locked():
        print(f"run directory: {run.folder}", flush=True)
        method, logs = config["method"], config["wandb"]
        results = fit_simple(options.task, method, run, config, log_to_wandb=logs)
    for name, value in results.items():
        print(f"  {name}  {formatted(name, value)}")


def ended_by(run: Run, last: Path, options: Options) -> list[str]:
    """Name the options that leave a run, with its last checkpoint, nothing to do; [] for none."""
    if not run.finished:
        return []
    checkpoint, limits = read(last, tensors=False), options.config["trainer"]
    with making(f"{last}: refused, its progress"):
        loop = checkpoint["loops"]["fit_loop"]
        continue_epoch(loop)
        epochs = int(loop["epoch_progress"]["current"]["processed"])
        waited = [
            state["wait_count"]
            for name, state in checkpoint["callbacks"].items()
            if name.startswith(EarlyStopping.__name__)
        ]
    reached = (("max_steps", checkpoint["global_step"]), ("max_epochs", epochs))
    ends = [f"--trainer.{key}" for key, value in reached if 0 <= (limits[key] or -1) <= value]
    patience = options.config["patience"]
    if patience is not None and any(count >= patience for count in waited):
        ends.append("--patience")
    return ends


def ignored_options(options: Options, finished: Run) -> list[str]:
    """Name the options of the model that differ from those of a run that has ended.

    Raises:
        InputError: if another mechanism is among them, or the seed or options of the data ask for
            another run.
    """
    config = options.resolved()
    _refuse_other_seed(config, finished)
    _refuse_other_data(options, config, finished)
    trained = flatten(read_yaml(finished.config)["model"], "model")
    used = flatten(config["model"], "model")
    # an older version has fewer
    other = [name for name, value in trained.items() if name in used and used[name] != value]
    for name in (f"model.{mechanism}" for mechanism in MECHANISMS):
        if name in other:
            raise InputError(
                f"--{name}: {finished.folder} was trained with {trained[name]}, got {used[name]}; "
                f"another model begins a new run, with what fits: fit --model.init_from "
                f"{finished.folder}"
            )
    return other


def _changed_options(config: Mapping[str, Any], run: Run) -> list[str]:
    """Word the options of a resumed run that differ from those with which it was trained."""
    before = flatten(read_yaml(run.config))
    return [
        f"{name} {value} (was {before[name]})"
        for name, value in flatten(config).items()
        if name in before and before[name] != value  # an older version has fewer
    ]


def _refuse_other_seed(config: Mapping[str, Any], run: Run) -> None:
    """Refuse another seed: weights came from the run's, and `compare` counts runs by seed."""
    trained, used = read_yaml(run.config).get("seed_everything", 0), config["seed_everything"]
    if used != trained:
        raise InputError(
            f"--seed_everything: {run.folder} was trained with {trained}, got {used}; leave the "
            "option out"
        )


def _refuse_other_data(options: Options, config: Mapping[str, Any], run: Run) -> None:
    """Refuse options of the data with which a run cannot go on, or would have been another one."""
    trained = read_yaml(run.config)["data"].get("init_args") or {}
    used = config["data"].get("init_args") or {}
    refuse_former_parts(trained, used, run.folder)
    refuse_other_split(trained, used, run.folder)
    refuse_other_validation(trained, used, run.data_digests, run.folder)
    refuse_other_options(options.task.kept_options, trained, used, run.folder)


def _announcement(run: Run, changed: list[str]) -> LambdaCallback:
    def say(*_: object) -> None:
        print(f"run directory: {run.folder}", flush=True)
        if changed:
            print(f"changed options: {', '.join(changed)}", flush=True)

    return LambdaCallback(on_train_start=say)


def _summarise(run: Run, task: Task, fitted: Fitted) -> None:
    """Print the results, the files, and the commands that use the run."""
    trainer = fitted.trainer
    print(
        f"\nfinished after {counted(trainer.global_step, 'step')}, "
        f"{counted(trainer.current_epoch, 'epoch')}, "
        f"{duration(fitted.seconds)}, {fitted.seconds_validating:.0f} s of it validation"
    )
    if fitted.patience_ended:
        print("ended by --patience: no gain in that many validations")
    results = sorted(fitted.results.items())
    lines = {name: formatted(name, value) for name, value in results if "layer" not in name}
    lines |= task.signatures()
    lines["checkpoint"] = str(run.chosen)
    lines["metrics"] = str(run.metrics)
    if fitted.pictures:
        names = ", ".join(path.name for path in fitted.pictures)
        lines["pictures"] = f"{run.pictures}: {names}"
    if fitted.findings:
        lines["tested"] = f"{run.tested}: {fitted.findings.description}"
    width = max(map(len, lines))
    for name, value in lines.items():
        print(f"  {name:<{width}}  {value}")
    if fitted.findings:
        if table := fitted.findings.summary():
            print(f"\n{aligned(table)}\n")
        fitted.findings.warn()
    foreign = ",".join(foreign_packages(read_yaml(run.config)))
    used = f"{run.folder} --trust {foreign}" if foreign else str(run.folder)
    _print_commands(task, used)


def _print_commands(task: Task, run: str) -> None:
    told = {"test it": "test --checkpoint {run}"}
    if is_overridden("text_dataloader", task, Task):
        told |= task.commands
    width = max(map(len, told)) + len(": ")
    for purpose, command in told.items():
        print(f"{purpose + ':':<{width}}clusterformer {command.format(run=run)}")
    if task.reads in _LINES:
        print(f"{'':<{width}}({_LINES[task.reads]})")
