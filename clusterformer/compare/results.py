"""What finished runs came to, from run folders or from Weights & Biases."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from clusterformer.errors import InputError
from clusterformer.training.runs import OUTCOME, Run


@dataclass(frozen=True)
class Result:
    """One finished run.

    Attributes:
        row, column, seed: Its place in the table.
        measures: Test and validation measures by name.
        monitor: The validation measure that chose the checkpoint.
        mode: Whether more of it is better, "max" or "min".
        seconds_an_epoch: Training and validation.
        epochs: That it trained.
        parameters: Trained weights.
        peak_mib: Highest memory of the process, or of the GPU.
        curve: (step, value) of the monitor, in time.
        config: Dotted keys of the whole configuration.
        environment: Command, commit, versions, hardware.
        folder: Of the run; "" if there is none here.
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
        real = [value for value in values if math.isfinite(value)]
        if not real:
            return None
        best = max(real) if self.mode == "max" else min(real)
        near = (abs(value - best) <= 0.01 * abs(best) for value in values)
        return 1 + next(number for number, close in enumerate(near) if close)


def of_run(run: Run, row: str, column: str, seed: int) -> Result:
    """The result in a run folder.

    Raises:
        InputError: if training has not ended there, or its files cannot be read.
    """
    found = run.results
    if found is None:
        raise InputError(f"{run.folder}: no results.json; finish it with fit --resume {run.folder}")
    config = flatten(yaml.safe_load(run.config.read_text(encoding="utf-8")))
    environment = json.loads((run.folder / "environment.json").read_text(encoding="utf-8"))
    curve = _curve(run.metrics, found["monitor"])
    return _result(found, row, column, config, curve, environment, str(run.folder), seed)


def of_folders(folders: Sequence[str]) -> list[Result]:
    """Results of any run folders; rows are named by what distinguishes them, columns by the data.

    Raises:
        InputError: if one is no run folder or has not ended.
    """
    runs = [Run.open(folder) for folder in folders]
    configs = [flatten(yaml.safe_load(run.config.read_text(encoding="utf-8"))) for run in runs]
    names = _names(configs)
    return [
        of_run(run, row, column, int(config.get("seed_everything") or 0))
        for run, (row, column), config in zip(runs, names, configs, strict=True)
    ]


def of_wandb(project: str, group: str) -> list[Result]:
    """Results of the runs that Weights & Biases keeps of one group.

    Raises:
        InputError: if it cannot be reached, or has no finished run there.
    """
    try:
        import wandb
    except ImportError:
        raise InputError("--from-wandb needs wandb: pip install 'clusterformer[wandb]'") from None
    try:
        found = wandb.Api(timeout=30).runs(project, filters={"group": group}, lazy=False)
        runs = [run for run in found if OUTCOME in run.summary]
        outcomes = [json.loads(run.summary[OUTCOME]) for run in runs]
        curves = [
            _history(run, outcome["monitor"]) for run, outcome in zip(runs, outcomes, strict=True)
        ]
    except Exception as error:  # its client raises whatever its transport does
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"W&B project {project} is out of reach: {said}") from error
    if not runs:
        raise InputError(f"W&B project {project} has no finished run in group {group!r}")
    # a sweep adds its own parameters, dotted and as text, to what the run says of itself
    configs = [
        flatten({key: value for key, value in run.config.items() if "." not in key}) for run in runs
    ]
    return [
        _result(
            outcome,
            row,
            column,
            config,
            curve,
            {"command": run.url},
            "",
            int(config.get("seed_everything") or 0),
        )
        for run, outcome, curve, config, (row, column) in zip(
            runs, outcomes, curves, configs, _names(configs), strict=True
        )
    ]


def _history(run: Any, monitor: str) -> list[tuple[float, float]]:
    """Curve of a run at W&B; of a step that came again after a kill, the later value."""
    points = run.scan_history(keys=["trainer/global_step", monitor])
    # NaN and Infinity come as text
    values = {point["trainer/global_step"]: float(point[monitor]) for point in points}
    return sorted(values.items())


def _result(
    found: Mapping[str, Any],
    row: str,
    column: str,
    config: Mapping[str, Any],
    curve: Sequence[tuple[float, float]],
    environment: Mapping[str, Any],
    folder: str,
    seed: int,
) -> Result:
    """From what `fit` wrote when it ended, here or at Weights & Biases."""
    return Result(
        row=row,
        column=column,
        seed=seed,
        measures=found["results"],
        monitor=found["monitor"],
        mode=found["mode"],
        seconds_an_epoch=found["seconds_a_step"] * found["steps"] / max(1, found["epochs"]),
        epochs=found["epochs"],
        parameters=found["parameters"],
        peak_mib=found["peak_mib"],
        curve=curve,
        config=config,
        environment=environment,
        folder=folder,
    )


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings to dotted keys; `class_path` and `init_args` leave no trace of their own."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    if "class_path" in tree:
        own = {prefix: str(tree["class_path"]).rpartition(".")[2]}
        return own | flatten_all(tree.get("init_args") or {}, prefix)
    return flatten_all(tree, prefix)


def flatten_all(tree: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """`flatten` of each entry, under its name."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Keys, sorted, that are not the same everywhere; their values in turn (None where absent)."""
    keys = sorted({key for config in configs for key in config})
    found = {key: [config.get(key) for config in configs] for key in keys}
    return {key: values for key, values in found.items() if any(v != values[0] for v in values)}


def _names(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Row and column of each run, from what its configuration has of its own."""
    apart = differences(configs)
    named = []
    for index, config in enumerate(configs):
        own = {
            key.rpartition(".")[2]: _plain(values[index])
            for key, values in apart.items()
            if key.startswith("model.") and key != "model.attention" and values[index] is not None
        }
        kind = str(config.get("model.attention", "run"))
        row = ", ".join([kind, *(f"{key}={value}" for key, value in own.items())])
        named.append((row, str(config.get("data.name") or config.get("data") or "")))
    rows = {row for row, _ in named}
    short = {row: row for row in rows}
    for row in rows:  # the mechanism's name alone, where that tells the rows apart
        kind = row.partition(",")[0]
        if sum(other.partition(",")[0] == kind for other in rows) == 1:
            short[row] = kind
    return [(short[row], column) for row, column in named]


def _plain(value: Any) -> Any:
    """1.0 as 1, which is what Weights & Biases makes of it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _curve(metrics: Path, monitor: str) -> list[tuple[float, float]]:
    try:
        with metrics.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        return [(float(row["step"]), float(row[monitor])) for row in rows if row.get(monitor)]
    except FileNotFoundError:
        return []
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise InputError(f"{metrics}: half-written or no metrics file: {error}") from None
