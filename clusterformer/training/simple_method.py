"""The engine of `fit --method`: a simple method of the task instead of the network."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from clusterformer.errors import InputError, making
from clusterformer.task import Task
from clusterformer.training import memory, wandb
from clusterformer.training.environment import describe_environment
from clusterformer.training.runs import Run


def fit_simple(
    task: Task, name: str, run: Run, config: Mapping[str, Any], *, log_to_wandb: bool = False
) -> dict[str, float]:
    """Train a simple method of a task, test it, and write the results as `fit` does.

    Args:
        task: The task.
        name: Name of one of its `baselines()`.
        run: Run directory.
        config: Whole configuration, to write to config.yaml.
        log_to_wandb: Whether to log the results to Weights & Biases too.

    Returns:
        Test results by name.

    Raises:
        InputError: if the task has no method of that name, its data are bad, or wandb is missing.
    """
    if log_to_wandb:
        wandb.wandb_mode()  # which says at once what is missing
    try:
        methods = task.baselines()
        if name not in methods:
            known = ", ".join(methods) or "none"
            raise InputError(f"{type(task).__name__} has no method {name!r}; it has: {known}")
        run.prepare(config)
        begun = time.monotonic()
        with making("options"):
            found = methods[name]()
        seconds = time.monotonic() - begun
        run.confirm()
    finally:
        run.cancel()
    results = {f"test/{measure}": value for measure, value in sorted(found.measures.items())}
    outcome = {
        "results": results,
        "monitor": task.monitor,
        "mode": task.mode,
        "steps": 1,
        "epochs": 1,
        "seconds": round(seconds, 2),
        "seconds_validating": 0.0,
        "seconds_a_step": seconds,
        "parameters": found.parameters,
        "peak_mib": round(memory.peak(torch.device("cpu")), 1),
        "device": "cpu",
        "environment": describe_environment(),
    }
    run.finish(outcome)
    if log_to_wandb:
        wandb.log_outcome(run, config, outcome)
    return results
