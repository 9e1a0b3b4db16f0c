"""Weights & Biases: results of a group of runs, and the comparison as a run of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clusterformer.compare.configs import flatten, name_rows
from clusterformer.compare.results import Result, check_outcome, result_of, seed_of
from clusterformer.compare.statistics import Summary
from clusterformer.compare.tables import body, header
from clusterformer.errors import InputError, missing
from clusterformer.training.runs import OUTCOME
from clusterformer.training.wandb import start


def fetch_results(project: str, group: str) -> list[Result]:
    """Fetch the results of a group of runs.

    Args:
        project: "ENTITY/PROJECT".
        group: Name of the group.

    Raises:
        InputError: if W&B cannot be reached, or has no finished run of that group.
    """
    try:
        import wandb
    except ImportError:
        raise missing("--from-wandb needs wandb", "wandb") from None
    try:
        found = wandb.Api(timeout=30).runs(project, filters={"group": group}, lazy=False)
        runs = [run for run in found if OUTCOME in run.summary]
        outcomes = [json.loads(run.summary[OUTCOME]) for run in runs]
        curves = [
            [] if run.config.get("method") else _curve(run, outcome["monitor"])
            for run, outcome in zip(runs, outcomes, strict=True)
        ]
    except Exception as error:  # its client raises whatever its transport does
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"W&B project {project} is out of reach: {reason}") from error
    if not runs:
        raise InputError(f"W&B project {project} has no finished run in group {group!r}")
    for run, outcome in zip(runs, outcomes, strict=True):
        check_outcome(outcome, run.url)
    # a sweep adds its own parameters, dotted and as text, to the run's configuration
    configs = [
        flatten({key: value for key, value in run.config.items() if "." not in key}) for run in runs
    ]
    return [
        result_of(
            outcome,
            row=row,
            column=column,
            seed=seed_of(config),
            config=config,
            curve=curve,
            environment={"command": run.url},
            folder="",
        )
        for run, outcome, curve, config, (row, column) in zip(
            runs, outcomes, curves, configs, name_rows(configs), strict=True
        )
    ]


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
