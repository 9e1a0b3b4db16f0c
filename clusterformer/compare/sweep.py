"""A comparison as a W&B sweep, for `wandb agent`."""

from __future__ import annotations

import math
from typing import Any

import yaml

from clusterformer.compare.plan import Plan
from clusterformer.errors import InputError
from clusterformer.training.config_files import to_argument
from clusterformer.training.monitoring import mode_of
from clusterformer.training.wandb import PROJECT


def sweep(plan: Plan, group: str) -> str:
    """Write the runs of a plan as the YAML of a grid sweep that calls `clusterformer fit`.

    Args:
        plan: The runs.
        group: Group of the runs at W&B, for `compare --from-wandb`.

    Raises:
        InputError: if the runs are no grid, or have different configurations.
    """
    if any(run.before for run in plan.runs):
        raise InputError("a sweep has neither first parts nor `trained_on`; `compare` itself has")
    values = _grid(plan)
    configs = {run.configs for run in plan.runs}
    if len(configs) > 1:
        raise InputError("a sweep has one configuration for all; give columns by keys instead")
    words = [word for config in configs.pop() for word in ("--config", config)]
    metric = {}
    if plan.metric:
        metric = {"metric": {"name": plan.metric, "goal": f"{mode_of(plan.metric)}imize"}}
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


def _grid(plan: Plan) -> dict[str, list[Any]]:
    """Collect the values of each key, whose combinations must be the runs."""
    keys = dict.fromkeys(key for run in plan.runs for key in run.options)
    values: dict[str, list[Any]] = {"seed_everything": []}
    for run in plan.runs:
        _add(values["seed_everything"], run.seed)
        for key in keys:
            if key not in run.options:
                raise InputError(
                    f"a sweep is a grid: {run.name} has no {key!r}, which other runs have"
                )
            _add(values.setdefault(key, []), _sweep_value(run.options[key]))
    combinations = math.prod(map(len, values.values()))
    if combinations != len(plan.runs):
        raise InputError(
            f"a sweep is a grid: its {combinations} combinations are not the {len(plan.runs)} runs"
        )
    return values


def _sweep_value(value: Any) -> Any:
    """Convert a value so that W&B, which writes it with str(), gives `fit` what it can parse."""
    return value if isinstance(value, str | int | float) else to_argument(value)


def _add(values: list[Any], value: Any) -> None:
    if value not in values:
        values.append(value)
