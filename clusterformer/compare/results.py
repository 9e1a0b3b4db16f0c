"""Results of finished runs, read from run directories."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from clusterformer.attention import mechanisms
from clusterformer.compare.configs import flatten, name_rows
from clusterformer.errors import InputError, reading, require_positive
from clusterformer.structure import require_structure
from clusterformer.training.config_files import read_yaml
from clusterformer.training.runs import Run
from clusterformer.training.selection import DECODER, ENCODER, WHOLE, seen_by_stack


class Outcome(TypedDict):
    """Parts of results.json that a comparison needs."""

    results: dict[str, float]
    monitor: str
    mode: str
    seconds_a_step: float
    steps: int
    epochs: int
    parameters: int
    peak_mib: float


@dataclass(frozen=True)
class Result:
    """The result of one finished run.

    Attributes:
        row, column, seed: Its cell in the table.
        measures: Test and validation measures by name.
        monitor: Validation measure that chose the checkpoint.
        mode: "max" or "min", for whether a higher or a lower monitor is better.
        seconds_a_step: Seconds of training and validation, over the steps of the optimizer.
        steps_an_epoch: Steps of a whole epoch.
        epochs: Number of epochs that it began.
        parameters: Number of trained weights.
        peak_mib: Peak memory of the process, or of the GPU.
        curve: (step, value) of the monitor, in time; the first step is 0.
        config: Dotted keys of the whole configuration.
        environment: Command, commit, versions and hardware.
        folder: Run directory; "" if there is none here.
        damage: A line for each of its files that could not be read, and is done without.
        trained_on: Column of its training, where it is a further test of that run's model.
    """

    row: str
    column: str
    seed: int
    measures: Mapping[str, float]
    monitor: str
    mode: str
    seconds_a_step: float
    steps_an_epoch: float
    epochs: int
    parameters: int
    peak_mib: float
    curve: Sequence[tuple[float, float]]
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    folder: str
    damage: Sequence[str] = ()
    trained_on: str | None = None

    @property
    def training(self) -> tuple[str, str, int]:
        """Row, column and seed of its training: tests of one model share them."""
        return self.row, self.column if self.trained_on is None else self.trained_on, self.seed

    @property
    def keys_seen(self) -> float | None:
        """Share of its text that a token attended to, in the test if there was one."""
        found = (self.measures.get(f"{stage}/keys_seen") for stage in ("test", "val"))
        return next((seen for seen in found if seen is not None), None)

    @property
    def selected_nothing(self) -> list[str]:
        """Stacks in which every token saw all under a mechanism that is to select keys."""
        kinds = {kind.__name__: kind for kind in mechanisms()}
        ours = str(self.config.get("model.attention", "NeuralClusteringAttention"))
        names = {ENCODER: ours, DECODER: str(self.config.get("model.decoder_attention") or ours)}
        by_nature = {s for s, name in names.items() if (k := kinds.get(name)) and k.sees_all}
        shares = seen_by_stack(self.measures)
        return [s for s, share in shares.items() if share > WHOLE and s not in by_nature]

    @property
    def seconds_an_epoch(self) -> float:
        """Seconds of training and validation in a whole epoch."""
        return self.seconds_a_step * self.steps_an_epoch

    @property
    def epochs_to_converge(self) -> float | None:
        """Epochs until validation comes within 1 % of its best (figure 5 of the paper)."""
        values = [value for _, value in self.curve]
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return None
        best = max(finite) if self.mode == "max" else min(finite)
        step = next(at for at, value in self.curve if abs(value - best) <= 0.01 * abs(best))
        return round((step + 1) / self.steps_an_epoch, 2)


def read_outcome(run: Run) -> Mapping[str, Any] | None:
    """Read what `fit` wrote when it ended in a run directory; None if its last start has not ended.

    Raises:
        InputError: if the file is damaged.
    """
    path = run.folder / "results.json"
    with reading(path, "the results of a fit"):
        outcome = run.results
        if outcome is not None:
            check_outcome(outcome, path)
            if outcome.get("config", run.config.name) != run.config.name:
                return None
    return outcome


def read_config(run: Run) -> dict[str, Any]:
    """Read the configuration of a run, as dotted keys.

    Raises:
        InputError: if the file is damaged.
    """
    with reading(run.config, "the configuration of a run"):
        flat = flatten(read_yaml(run.config))
        seed_of(flat)
    return flat


def read_environment(path: Path) -> dict[str, Any]:
    """Read the command, commit, versions and hardware of a start.

    Raises:
        InputError: if the file is damaged.
    """
    with reading(path, "the environment of a run"):
        environment = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(environment, dict):
            raise InputError(f"{path}: no JSON object")
    return environment


def read_result(run: Run, row: str, column: str, seed: int) -> Result:
    """Read the result in a run directory.

    Raises:
        InputError: if the training has not ended, or its results or configuration are damaged.
    """
    outcome = read_outcome(run)
    if outcome is None:
        raise InputError(f"{run.folder}: no results.json; finish it with fit --resume {run.folder}")
    damage: list[str] = []
    environment: dict[str, Any] = {}
    try:
        environment = read_environment(run.folder / "environment.json")
        starts = [environment, *map(read_environment, run.environments[1:])]
        commits = dict.fromkeys(str(start.get("commit") or "unknown") for start in starts)
        if len(commits) > 1:  # resumed with another
            environment["commit"] = ", then ".join(commits)
    except InputError as error:
        damage.append(str(error))
    return result_of(
        outcome,
        row=row,
        column=column,
        seed=seed,
        config=read_config(run),
        curve=_curve(run.metrics, outcome["monitor"], damage),
        environment=environment,
        folder=str(run.folder),
        damage=damage,
    )


def read_results(folders: Sequence[str], report: Callable[[str], None]) -> list[Result]:
    """Read the results in run directories, and name rows and columns by what distinguishes them.

    Args:
        folders: Paths of run directories.
        report: Function that gets a line for each run that is left out, since its training has not
            ended or its files are damaged.

    Raises:
        InputError: if one is no run directory.
    """
    opened = dict.fromkeys(Run.open(folder) for folder in folders)
    found = [result for run in opened if (result := _read(run, report))]
    names = name_rows([result.config for result in found])
    return [
        replace(result, row=row, column=column, seed=seed_of(result.config))
        for result, (row, column) in zip(found, names, strict=True)
    ]


def _read(run: Run, report: Callable[[str], None]) -> Result | None:
    """Read the result of a run, not yet named; None, once reported, if it cannot be read."""
    try:
        return read_result(run, "", "", 0)
    except InputError as error:
        report(f"left out: {error}")
        return None


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
    damage: Sequence[str] = (),
) -> Result:
    """Make a result from the outcome that `fit` wrote when it ended, here or at W&B."""
    return Result(
        row=row,
        column=column,
        seed=seed,
        measures=outcome["results"],
        monitor=outcome["monitor"],
        mode=outcome["mode"],
        seconds_a_step=outcome["seconds_a_step"],
        # older runs have not written it
        steps_an_epoch=outcome.get("steps_an_epoch", outcome["steps"] / max(1, outcome["epochs"])),
        epochs=outcome["epochs"],
        parameters=outcome["parameters"],
        peak_mib=outcome["peak_mib"],
        curve=curve,
        config=config,
        environment=environment,
        folder=folder,
        damage=damage,
    )


def seed_of(config: Mapping[str, Any]) -> int:
    """Return the seed in a configuration; 0 where there is none."""
    return int(config.get("seed_everything") or 0)


def check_outcome(outcome: Any, source: str | Path) -> None:
    """Refuse what is no outcome that `fit` wrote when it ended.

    Raises:
        InputError: with the source, and the first value that does not fit.
    """
    require_structure(outcome, Outcome, f"{source}: refused, results")
    require_positive(**{f"{source}: steps_an_epoch": outcome.get("steps_an_epoch", 1)})


def _curve(metrics: Path, monitor: str, damage: list[str]) -> list[tuple[float, float]]:
    """Read a curve; a row that is half-written or no numbers is done without."""
    points: list[tuple[float, float]] = []
    if not metrics.exists():
        return points
    try:
        with (
            reading(metrics, "a table of measures") as at,
            metrics.open(encoding="utf-8", newline="") as file,
        ):
            for at.line, row in enumerate(csv.DictReader(file), start=2):
                step = float(row["step"])
                if row.get(monitor):
                    points.append((step, float(row[monitor])))
    except InputError as error:
        damage.append(f"{error}; its curve ends before")
    return [(step, value) for step, value in points if math.isfinite(step)]
