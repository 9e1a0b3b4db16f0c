"""Weights & Biases: one way to log in, whichever command logs there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger

from clusterformer.errors import InputError, missing
from clusterformer.training.runs import OUTCOME, Run

PROJECT = "clusterformer"
TEST = "test"
"""Key of a W&B run's summary: what a test of a trained model measured, as JSON."""
MODEL_OF = "model_of"
"""Key of a W&B run's configuration: identifier of the run that trained the model of a test."""


def wandb_mode() -> Any:
    """Log in to Weights & Biases.

    Returns:
        WANDB_MODE where it is set; else None with an account, and "offline" without one.

    Raises:
        InputError: if wandb is not installed.
    """
    try:
        import wandb
    except ImportError:
        raise missing("--wandb needs wandb", "wandb") from None
    if given := os.environ.get("WANDB_MODE"):
        return given  # handed on: W&B reads the variable only once in a process
    return None if wandb.login(prompt=False, verify=False) else "offline"


def start(name: str, folder: Path, **options: Any) -> Any:
    """Start a W&B run of the project that writes into `folder`; offline without an account.

    Args:
        name: Name of the run at W&B.
        folder: Parent of W&B's own folder.
        options: Other arguments of `wandb.init`, such as `config` or `group`.
    """
    mode = wandb_mode()
    import wandb

    return wandb.init(project=PROJECT, name=name, dir=folder, mode=mode, **options)


def logger(run: Run, config: Mapping[str, Any]) -> WandbLogger:
    """Make the logger of a training: the same W&B run whenever the training is resumed.

    Its name is WANDB_NAME where that is set, as `compare` does, else that of the run directory.

    Raises:
        InputError: if W&B cannot be reached.
    """
    # not `offline`: that sets an environment variable, too late after the login has read them
    made = WandbLogger(
        name=_name(run),
        save_dir=run.folder,
        project=PROJECT,
        id=run.wandb_id,
        resume="allow",
        mode=wandb_mode(),
    )
    try:
        made.log_hyperparams(dict(config))
    except Exception as error:  # its client raises whatever its transport does
        raise InputError(f"W&B: {error}; WANDB_MODE=offline logs to the run directory") from error
    return made


def log_outcome(run: Run, config: Mapping[str, Any], outcome: Mapping[str, Any]) -> None:
    """Log a training that has no curve, such as that of a simple method."""
    options = {"id": run.wandb_id, "resume": "allow", "config": dict(config)}
    with start(_name(run), run.folder, **options) as log:
        log.log(outcome["results"])
        log.summary[OUTCOME] = json.dumps(outcome)


def log_test(run: Run, config: Mapping[str, Any], measured: Mapping[str, Any]) -> None:
    """Log a test of a trained model as a W&B run beside that of its training.

    The same test of the same model, made again, is the same W&B run.

    Args:
        run: Run that trained the model.
        config: Whole configuration of the test, nested.
        measured: What the test wrote: "results" by name, "seconds" and "environment".
    """
    text = json.dumps(config, sort_keys=True, default=str)
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    options = {"id": f"{run.wandb_id}-{digest}", "resume": "allow", "job_type": TEST}
    name = os.environ.get("WANDB_NAME") or f"{run.name}, test"
    with start(name, run.folder, config={**config, MODEL_OF: run.wandb_id}, **options) as log:
        log.log(measured["results"])
        log.summary[TEST] = json.dumps(measured)


def _name(run: Run) -> str:
    return os.environ.get("WANDB_NAME") or run.name
