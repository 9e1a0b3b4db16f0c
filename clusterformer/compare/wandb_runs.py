"""A comparison at Weights & Biases: its table and page, and the same grid as a sweep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from clusterformer.compare.plan import Plan
from clusterformer.compare.statistics import Summary, direction
from clusterformer.compare.tables import body, header
from clusterformer.errors import InputError
from clusterformer.training.wandb import PROJECT, start


def log(summary: Summary, folder: Path) -> None:
    """Keep table and page as a run of their own, beside the group's; offline without an account."""
    name = f"{folder.name}: comparison"
    with start(name, folder, group=folder.name, job_type="comparison") as run:
        import wandb

        columns: list[str | int] = [name or "run" for name in header(summary)]
        run.log({"comparison": wandb.Table(columns=columns, data=body(summary))})
        artifact = wandb.Artifact(f"{folder.name}-comparison", type="comparison")
        for path in sorted(folder.glob("*.*")):
            if path.suffix in (".html", ".csv", ".md", ".tex"):
                artifact.add_file(str(path))
        run.log_artifact(artifact)


def sweep(plan: Plan, group: str) -> str:
    """The runs of a plan as a W&B sweep that calls this command line.

    Args:
        plan: What to train.
        group: Of its runs at W&B, by which `compare --from-wandb` finds them.

    Raises:
        InputError: if rows or columns are more than values of the same keys: a sweep is a grid.
    """
    options = [run.options for run in plan.runs]
    keys = dict.fromkeys(key for each in options for key in each)
    values: dict[str, list[Any]] = {"seed_everything": []}
    for run in plan.runs:
        _add(values["seed_everything"], run.seed)
        for key in keys:
            if key not in run.options:
                raise InputError(
                    f"a sweep is a grid: {run.name} has no {key!r}, which other runs have"
                )
            _add(values.setdefault(key, []), _written(run.options[key]))
    configs = {run.configs for run in plan.runs}
    if len(configs) > 1:
        raise InputError("a sweep has one configuration for all; give columns by keys instead")
    combinations = 1
    for found in values.values():
        combinations *= len(found)
    if combinations != len(plan.runs):
        raise InputError(
            f"a sweep is a grid: its {combinations} combinations are not the {len(plan.runs)} runs"
        )
    words = [word for config in configs.pop() for word in ("--config", config)]
    metric = {}
    if plan.metric:
        metric = {"metric": {"name": plan.metric, "goal": f"{direction(plan.metric)}imize"}}
    return yaml.safe_dump(
        {
            "name": plan.title,
            "project": PROJECT,
            "program": "clusterformer",
            "method": "grid",
            **metric,
            "parameters": {key: {"values": found} for key, found in values.items()},
            "command": [
                "${env}",
                f"WANDB_RUN_GROUP={group}",
                "${program}",
                "fit",
                *words,
                "--wandb",
                "${args}",
            ],
        },
        sort_keys=False,
    )


def _written(value: Any) -> Any:
    """What W&B, which writes with str(), turns into what `fit` reads."""
    return value if isinstance(value, str | int | float) else json.dumps(value)


def _add(values: list[Any], value: Any) -> None:
    if value not in values:
        values.append(value)
