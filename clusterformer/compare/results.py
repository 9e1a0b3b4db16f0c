"""Results of finished runs, read from run directories."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from clusterformer.compare.configs import flatten, name_rows
from clusterformer.errors import InputError
from clusterformer.training.runs import Run


@dataclass(frozen=True)
class Result:
    """The result of one finished run.

    Attributes:
        row, column, seed: Its cell in the table.
        measures: Test and validation measures by name.
        monitor: Validation measure that chose the checkpoint.
        mode: "max" or "min", for whether a higher or a lower monitor is better.
        seconds_an_epoch: Seconds of training and validation per epoch.
        epochs: Number of epochs that it trained.
        parameters: Number of trained weights.
        peak_mib: Peak memory of the process, or of the GPU.
        curve: (step, value) of the monitor, in time.
        config: Dotted keys of the whole configuration.
        environment: Command, commit, versions and hardware.
        folder: Run directory; "" if there is none here.
    """

    row: str
    column: str
    seed: int
    measures: Mapping[str, float]
    monitor: str
    mode: str
    seconds_an_epoch: float
    epochs: int
    parameters: int
    peak_mib: float
    curve: Sequence[tuple[float, float]]
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    folder: str

    @property
    def epochs_to_converge(self) -> int | None:
        """First epoch whose validation comes within 1 % of the best one (figure 5 of the paper)."""
        values = [value for _, value in self.curve]
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return None
        best = max(finite) if self.mode == "max" else min(finite)
        near = (abs(value - best) <= 0.01 * abs(best) for value in values)
        return 1 + next(number for number, close in enumerate(near) if close)


def read_result(run: Run, row: str, column: str, seed: int) -> Result:
    """Read the result in a run directory.

    Raises:
        InputError: if the training has not ended, or its files cannot be read.
    """
    outcome = run.results
    if outcome is None:
        raise InputError(f"{run.folder}: no results.json; finish it with fit --resume {run.folder}")
    return result_of(
        outcome,
        row=row,
        column=column,
        seed=seed,
        config=_config(run),
        curve=_curve(run.metrics, outcome["monitor"]),
        environment=json.loads((run.folder / "environment.json").read_text(encoding="utf-8")),
        folder=str(run.folder),
    )


def read_results(folders: Sequence[str]) -> list[Result]:
    """Read the results in run directories, and name rows and columns by what distinguishes them.

    Raises:
        InputError: if one is no run directory, or its training has not ended.
    """
    runs = [Run.open(folder) for folder in folders]
    configs = [_config(run) for run in runs]
    return [
        read_result(run, row, column, seed_of(config))
        for run, (row, column), config in zip(runs, name_rows(configs), configs, strict=True)
    ]


def result_of(
    outcome: Mapping[str, Any],
    *,
    row: str,
    column: str,
    seed: int,
    config: Mapping[str, Any],
    curve: Sequence[tuple[float, float]],
    environment: Mapping[str, Any],
    folder: str,
) -> Result:
    """Make a result from the outcome that `fit` wrote when it ended, here or at W&B."""
    return Result(
        row=row,
        column=column,
        seed=seed,
        measures=outcome["results"],
        monitor=outcome["monitor"],
        mode=outcome["mode"],
        seconds_an_epoch=outcome["seconds_a_step"] * outcome["steps"] / max(1, outcome["epochs"]),
        epochs=outcome["epochs"],
        parameters=outcome["parameters"],
        peak_mib=outcome["peak_mib"],
        curve=curve,
        config=config,
        environment=environment,
        folder=folder,
    )


def seed_of(config: Mapping[str, Any]) -> int:
    """Return the seed in a configuration; 0 where there is none."""
    return int(config.get("seed_everything") or 0)


def _config(run: Run) -> dict[str, Any]:
    return flatten(yaml.safe_load(run.config.read_text(encoding="utf-8")))


def _curve(metrics: Path, monitor: str) -> list[tuple[float, float]]:
    try:
        with metrics.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        return [(float(row["step"]), float(row[monitor])) for row in rows if row.get(monitor)]
    except FileNotFoundError:
        return []
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise InputError(f"{metrics}: half-written or no metrics file: {error}") from None
