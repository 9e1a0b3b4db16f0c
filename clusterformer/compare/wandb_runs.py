"""Weights & Biases: results of a group of runs, and the comparison as a run of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from clusterformer.compare.configs import flatten, name_rows, with_data_of
from clusterformer.compare.model_tests import check_measured, result_of_test
from clusterformer.compare.results import Result, check_outcome, result_of, seed_of
from clusterformer.compare.statistics import Summary
from clusterformer.compare.tables import body, header
from clusterformer.errors import InputError, missing
from clusterformer.training.runs import OUTCOME
from clusterformer.training.wandb import MODEL_OF, TEST, start


class _Training(NamedTuple):
    """A finished training at W&B: its address, dotted keys of its options, and what it reached."""

    url: str
    config: dict[str, Any]
    outcome: dict[str, Any]
    curve: list[tuple[float, float]]


class _Test(NamedTuple):
    """A further test of a model at W&B, and the identifier of the run that trained the model."""

    url: str
    config: dict[str, Any]
    measured: Any
    model_of: str


def fetch_results(project: str, group: str) -> list[Result]:
    """Fetch the results of a group of runs, then those of further tests of their models.

    Args:
        project: "ENTITY/PROJECT".
        group: Name of the group.

    Raises:
        InputError: if W&B cannot be reached, or has no finished run of that group.
    """
    trainings, tests = _fetch(project, group)
    of_tests = [with_data_of(trainings[test.model_of].config, test.config) for test in tests]
    names = iter(name_rows([*(training.config for training in trainings.values()), *of_tests]))
    results: dict[str, Result] = {}
    for identifier, (url, config, outcome, curve) in trainings.items():
        check_outcome(outcome, url)
        row, column = next(names)
        results[identifier] = result_of(
            outcome,
            row=row,
            column=column,
            seed=seed_of(config),
            config=config,
            curve=curve,
            environment={"command": url},
            folder="",
        )
    further: list[Result] = []
    for url, config, measured, model_of in tests:
        found = check_measured(measured, url)
        row, column = next(names)
        made = result_of_test(results[model_of], found, column=column, config=config)
        further.append(replace(made, row=row, environment={"command": url}))
    return [*results.values(), *further]


def _fetch(project: str, group: str) -> tuple[dict[str, _Training], list[_Test]]:
    """Fetch the trainings of a group by their identifiers, and the tests of their models."""
    try:
        import wandb
    except ImportError:
        raise missing("--from-wandb needs wandb", "wandb") from None
    try:
        found = list(wandb.Api(timeout=30).runs(project, filters={"group": group}, lazy=False))
        trainings = {run.id: _read_training(run) for run in found if OUTCOME in run.summary}
        # without the run that trained its model a test has no row
        tests = [
            _Test(run.url, _read_config(run), json.loads(run.summary[TEST]), run.config[MODEL_OF])
            for run in found
            if TEST in run.summary and run.config.get(MODEL_OF) in trainings
        ]
    except Exception as error:  # its client raises whatever its transport does
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"W&B project {project} is out of reach: {reason}") from error
    if not trainings:
        raise InputError(f"W&B project {project} has no finished run in group {group!r}")
    return trainings, tests


def _read_training(run: Any) -> _Training:
    outcome = json.loads(run.summary[OUTCOME])
    curve = [] if run.config.get("method") else _curve(run, outcome["monitor"])
    return _Training(run.url, _read_config(run), outcome, curve)


def _read_config(run: Any) -> dict[str, Any]:
    """Read the dotted keys of a run's configuration; a sweep adds its own, dotted and as text."""
    own = {k: v for k, v in run.config.items() if "." not in k and k != MODEL_OF}
    return flatten(own)


def folder_of(group: str) -> Path:
    """Name the directory of a group's table and page.

    Raises:
        InputError: if the group's name is no name of a directory.
    """
    if Path(group).name != group or group == "..":
        raise InputError(f"--group {group} cannot name a directory in comparisons; give --out DIR")
    return Path("comparisons") / group


def log_comparison(summary: Summary, folder: Path, group: str) -> None:
    """Log the table and the files of a comparison as a run in its group.

    Without an account the run is offline.

    Args:
        summary: The table.
        folder: Directory of the comparison.
        group: Group of its runs.
    """
    name = f"{group}: comparison"
    with start(name, folder, group=group, job_type="comparison") as run:
        import wandb

        columns: list[str | int] = [name or "run" for name in header(summary)]
        run.log({"comparison": wandb.Table(columns=columns, data=body(summary))})
        artifact = wandb.Artifact(f"{group}-comparison", type="comparison")
        for path in sorted(folder.glob("*.*")):
            if path.suffix in (".html", ".csv", ".md", ".tex"):
                artifact.add_file(str(path))
        run.log_artifact(artifact)


def _curve(run: Any, monitor: str) -> list[tuple[float, float]]:
    """Read a curve; of a step that was logged twice, after a kill, the later value counts."""
    points = run.scan_history(keys=["trainer/global_step", monitor])
    # W&B keeps NaN and Infinity as text
    values = {point["trainer/global_step"]: float(point[monitor]) for point in points}
    return sorted(values.items())
