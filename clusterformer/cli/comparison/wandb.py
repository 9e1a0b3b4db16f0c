"""A comparison at Weights & Biases: its table and page, and the same grid as a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from clusterformer.cli.comparison.plan import Plan
from clusterformer.cli.comparison.summary import Summary
from clusterformer.cli.comparison.tables import body, header
from clusterformer.errors import InputError


def log(summary: Summary, folder: Path) -> None:
    """Keep table and page as a run of their own, beside the group's; offline without an account."""
    try:
        import wandb
    except ImportError:
        raise InputError("--wandb needs wandb: pip install 'clusterformer[wandb]'") from None
    mode = "online" if wandb.login(prompt=False, verify=False) else "offline"
    with wandb.init(
        project="clusterformer",
        name=f"{folder.name}: comparison",
        group=folder.name,
        job_type="comparison",
        dir=folder,
        mode=mode,  # type: ignore[arg-type]
    ) as run:
        columns: list[str | int] = [name or "run" for name in header(summary)]
        run.log({"comparison": wandb.Table(columns=columns, data=body(summary))})
        artifact = wandb.Artifact(f"{folder.name}-comparison", type="comparison")
        for path in sorted(folder.glob("*.*")):
            if path.suffix in (".html", ".csv", ".md", ".tex"):
                artifact.add_file(str(path))
        run.log_artifact(artifact)


def sweep(plan: Plan) -> str:
    """The runs of a plan as a W&B sweep that calls this command line.

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
            _add(values.setdefault(key, []), run.options[key])
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
    metric = plan.metric or "val/accuracy"
    words = [word for config in configs.pop() for word in ("--config", config)]
    return yaml.safe_dump(
        {
            "name": plan.title,
            "method": "grid",
            "metric": {"name": metric, "goal": "maximize"},
            "parameters": {key: {"values": found} for key, found in values.items()},
            "command": ["${env}", "clusterformer", "fit", *words, "--wandb", "${args}"],
        },
        sort_keys=False,
    )


def _add(values: list[Any], value: Any) -> None:
    if value not in values:
        values.append(value)
