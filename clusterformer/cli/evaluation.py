"""Loading and measuring of a trained model, for the commands on a checkpoint."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clusterformer.api import TrainedModel
from clusterformer.cli.options import Options, pop_option
from clusterformer.cli.output import announce_replacement
from clusterformer.data.named_sets import Split
from clusterformer.errors import InputError, making
from clusterformer.training.as_trained import refuse_other_options, refuse_other_split
from clusterformer.training.config_files import read_yaml
from clusterformer.training.environment import describe_environment
from clusterformer.training.lost_processes import ProcessWatch
from clusterformer.training.runs import Run, first_process
from clusterformer.training.saved import open_saved
from clusterformer.training.saved_clustering import is_clustering, predicting_command
from clusterformer.training.stopping import keyboard_interrupts
from clusterformer.training.trusted import Named
from clusterformer.training.wandb import log_test, wandb_mode
from clusterformer.whole_files import naming, write_text
from clusterformer.wording import formatted
from clusterformer.working_folder import import_from_working_folder


def load_model(arguments: list[str], device: str | None = None) -> tuple[TrainedModel, Options]:
    """Load the model after `--checkpoint`; the other arguments change its configuration.

    Args:
        arguments: Command line, without the command.
        device: Device of the model, if the command line names none.

    Raises:
        InputError: without `--checkpoint`, and as `clusterformer.load`.
    """
    path, arguments = pop_option(arguments, "--checkpoint")
    average, arguments = pop_option(arguments, "--average")
    trust, arguments = pop_option(arguments, "--trust", several=True)
    named, arguments = pop_option(arguments, "--device")
    if path is None:
        raise InputError("give --checkpoint, a run directory or a .ckpt file")
    if is_clustering(Path(path)):
        raise InputError(f"{path}: clusters, label with `{predicting_command(Path(path))}`")
    import_from_working_folder()
    saved = open_saved(path, Named.by(arguments, trust).classes)
    options = Options(arguments, fitting=False, base=saved.config)
    trained, used = saved.config["data"].get("init_args") or {}, _used(options)
    refuse_other_options(options.task.kept_options, trained, used, saved.path)
    model = TrainedModel(
        saved, options.model, options.task, average=average, device=named or device
    )
    return model, options


def evaluate(arguments: list[str], stage: Literal["validate", "test"]) -> None:
    """Measure a trained model and print `name<TAB>value` for each measure.

    Raises:
        InputError: as `load_model`, and for what cannot be measured or written.
    """
    outputs, arguments = _pop_outputs(arguments, stage)
    model, options = load_model(arguments, "cpu")
    tested = Run.open(model.path) if outputs.wandb else None
    if outputs.report and model.task.report() is None:
        raise InputError(f"--report: {type(model.task).__name__} has no report")
    _refuse_files(model, options, {argument.partition("=")[0] for argument in arguments})
    trained = model.config["data"].get("init_args") or {}
    part: Split = "valid" if stage == "validate" else "test"
    refuse_other_split(trained, _used(options), model.path, [part])
    refuse_edited(model, part, _used(options))
    begun = time.monotonic()
    results = _measure(model, options, stage)
    if not first_process():
        return
    for name, value in sorted(results.items()):
        print(f"{name}\t{formatted(name, value)}")
    if findings := model.module.findings:
        for name, value in findings.measures().items():
            name = f"{stage}/{' '.join(name.split())}"
            print(f"{name}\t{value:.4f}")
            results[name] = value
        findings.warn()
        if outputs.report:
            with naming(outputs.report):
                findings.write(outputs.report)
    signatures = model.task.signatures()
    for name, signature in signatures.items():
        print(f"{name}\t{signature}")
    seconds, environment = time.monotonic() - begun, describe_environment()
    measured = {"results": results, "seconds": seconds, "environment": environment}
    if signatures:
        measured["signatures"] = signatures
    if tested:
        log_test(tested, options.resolved(), measured)
    if outputs.out:
        write_text(outputs.out, json.dumps(measured, indent=2) + "\n")


@dataclass(frozen=True)
class _Outputs:
    """Where the measures go, besides standard output.

    Attributes:
        report: Folder of a classifier's report.
        out: JSON file of the unrounded measures.
        wandb: Whether they are logged to Weights & Biases.
    """

    report: Path | None
    out: Path | None
    wandb: bool


def _pop_outputs(arguments: list[str], stage: str) -> tuple[_Outputs, list[str]]:
    """Take the options that say where the measures go; what cannot be written is refused first."""
    folder, arguments = pop_option(arguments, "--report")
    file, arguments = pop_option(arguments, "--out")
    report, out = (Path(name) if name else None for name in (folder, file))
    wandb = "--wandb" in arguments
    if any(given.startswith("--wandb=") for given in arguments):
        raise InputError("--wandb takes no value")
    if out and (out.is_dir() or not out.parent.is_dir()):
        raise InputError(f"--out {out}: must be a file in a folder that is there")
    if report and stage == "validate":
        raise InputError("--report is for test; validate has none")
    if report and report.exists() and not report.is_dir():
        raise InputError(f"--report {report}: a file, allowed is a folder to write into")
    if out:
        announce_replacement("--out", out)
    if wandb:
        wandb_mode()
    return _Outputs(report, out, wandb), [given for given in arguments if given != "--wandb"]


def _measure(
    model: TrainedModel, options: Options, stage: Literal["validate", "test"]
) -> dict[str, float]:
    watch = ProcessWatch()
    trainer = options.make_trainer(watch)
    measure = trainer.validate if stage == "validate" else trainer.test
    with making("options"), watch.until_the_end(trainer), keyboard_interrupts(trainer):
        found = measure(model.module, model.task, verbose=False)
    if not found:
        limit = "limit_val_batches" if stage == "validate" else "limit_test_batches"
        raise InputError(f"trainer.{limit} must be above 0 to measure, got 0")
    return dict(found[0])


def _used(options: Options) -> dict[str, Any]:
    """Options of the task, nested."""
    found: dict[str, Any] = options.config["data"]["init_args"].as_dict()
    return found


def _refuse_files(model: TrainedModel, options: Options, named: set[str]) -> None:
    """Refuse to read a file or folder that the checkpoint alone names.

    The user names files by options, in this command or in the `fit` that wrote the run's
    config.yaml; named sets have their own folder.

    Raises:
        InputError: with the option that names the file.
    """
    own, used = _own_options(model.path), options.config["data"]["init_args"]
    for option, value in (model.config["data"].get("init_args") or {}).items():
        if f"--data.{option}" in named or own.get(option) == value or used.get(option) != value:
            continue
        if isinstance(value, str) and (os.sep in value or Path(value).exists()):
            raise InputError(
                f"{model.path}: refused, the checkpoint names the file {value}; if it is to be "
                f"read: --data.{option} {value}"
            )


def refuse_edited(model: TrainedModel, part: Split, used: Mapping[str, Any] | None = None) -> None:
    """Refuse a part that is held out of a file which was edited since the training.

    Other examples are held out of it now, and some of them were trained on.

    Args:
        model: Trained model.
        part: Part to be measured.
        used: Options of its task; None: those it was trained with.

    Raises:
        InputError: with the file.
    """
    try:
        run = Run.open(model.path)
    except InputError:
        return  # a checkpoint without its run directory
    if used is None:
        used = model.config["data"].get("init_args") or {}
    if used.get(part) is None:
        run.refuse_edited(used.get("train"))
    # a translation without a test part tests on the validation pairs
    parts = {"valid_source"} if part == "valid" else {"test_source", "valid_source"}
    if all(used.get(option) is None for option in parts):
        run.refuse_edited([used.get("train_source"), used.get("train_target")])


def _own_options(checkpoint: Path) -> dict[str, Any]:
    """Read the options of the task in the configuration of the checkpoint's run directory."""
    try:
        own = read_yaml(Run.open(checkpoint).config)["data"]["init_args"]
    except (InputError, KeyError, TypeError):
        return {}  # a checkpoint without its run directory
    return own if isinstance(own, dict) else {}
