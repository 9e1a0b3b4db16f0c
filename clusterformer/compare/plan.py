"""What a comparison consists of: a YAML file of rows, columns, a grid and seeds, made into runs."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from clusterformer.errors import InputError
from clusterformer.training.config_files import find

Options = dict[str, Any]
"""Dotted keys of `fit` to values; `config` names one configuration or several."""

KEYS: dict[str, type | tuple[type, ...]] = {
    "title": str,
    "config": (str, list),
    "options": dict,
    "rows": dict,
    "columns": dict,
    "grid": dict,
    "seeds": list,
    "metric": str,
    "baseline": str,
    "paper": dict,
}


@dataclass(frozen=True)
class PlannedRun:
    """One training of a comparison.

    Attributes:
        row: What is compared, such as a mechanism.
        column: On what, such as a data set; "" if there is one column alone.
        seed: Of the run.
        options: Of `fit`, dotted keys; configurations apart.
        configs: Configurations, each overlaying those before it.
    """

    row: str
    column: str
    seed: int
    options: Options
    configs: tuple[str, ...]

    @property
    def place(self) -> Path:
        """Where the run's folder goes, below that of the comparison."""
        return Path(slug(self.row)) / slug(self.column or "all") / f"seed-{self.seed}"

    @property
    def name(self) -> str:
        """For people."""
        on = f" on {self.column}" if self.column else ""
        return f"{self.row}{on}, seed {self.seed}"

    def arguments(self) -> list[str]:
        """What follows `clusterformer fit`."""
        configs = [word for config in self.configs for word in ("--config", config)]
        values = [f"--{key}={_written(value)}" for key, value in self.options.items()]
        return [*configs, *values, f"--seed_everything={self.seed}"]


@dataclass(frozen=True)
class Plan:
    """A comparison.

    Attributes:
        title: For people.
        runs: Row by row, then by column and seed.
        metric: What is compared, such as "test/accuracy"; None for the task's own.
        baseline: Row that the others are tested against; None for the first.
        paper: Row to column to the paper's own number, shown beside ours.
    """

    title: str
    runs: list[PlannedRun]
    metric: str | None = None
    baseline: str | None = None
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def read_plan(path: Path) -> Plan:
    """Read a comparison.

    The file holds `config` (one or several, for all runs), `options` (dotted keys, for all runs),
    `rows` and `columns` (name to dotted keys, among them `config`), `grid` (dotted key to a list of
    values: each combination makes a row of its own), `seeds`, and for the table `title`, `metric`,
    `baseline` and `paper`.

    Raises:
        InputError: if it holds anything else, no run, or two runs of one name.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line}: not valid YAML") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds no comparison, such as `rows:` and `seeds:`")
    for key, value in content.items():
        if key not in KEYS:
            raise InputError(f"{path}: unknown key {key!r}; allowed are {', '.join(KEYS)}")
        if not isinstance(value, KEYS[key]):
            raise InputError(f"{path}: {key} has the wrong form: {value!r}")
    seeds = content.get("seeds", [0])
    if not seeds or not all(isinstance(seed, int) and seed >= 0 for seed in seeds):
        raise InputError(f"{path}: seeds must be a list of numbers from 0, got {seeds!r}")
    rows = _expand(path, _named(path, content, "rows", "run"), content.get("grid", {}))
    columns = _named(path, content, "columns", "")
    shared = {**content.get("options", {}), "config": content.get("config", [])}
    runs = [
        _planned(row, column, seed, shared, rows[row], columns[column])
        for row in rows
        for column in columns
        for seed in seeds
    ]
    _refuse_twins(path, runs)
    baseline = content.get("baseline")
    if baseline is not None and baseline not in rows:
        raise InputError(f"{path}: no row {baseline!r} for a baseline; there are {', '.join(rows)}")
    return Plan(
        content.get("title", path.stem.replace("-", " ")),
        runs,
        content.get("metric"),
        baseline,
        content.get("paper", {}),
    )


def slug(name: str) -> str:
    """A folder's name for it."""
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", name).strip("-") or "run"


def _named(path: Path, content: Mapping[str, Any], key: str, alone: str) -> dict[str, Options]:
    named = content.get(key, {alone: {}})
    if not named:
        raise InputError(f"{path}: {key} is empty")
    for name, options in named.items():
        if not isinstance(options, dict | None):
            raise InputError(f"{path}: {key}: {name}: must be dotted keys, got {options!r}")
    return {str(name): options or {} for name, options in named.items()}


def _expand(path: Path, rows: dict[str, Options], grid: Mapping[str, Any]) -> dict[str, Options]:
    """One row for each combination of the grid's values."""
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{path}: grid: {key}: must be a list of values, got {values!r}")
    if not grid:
        return rows
    expanded = {}
    for (row, options), values in itertools.product(
        rows.items(), itertools.product(*grid.values())
    ):
        chosen = dict(zip(grid, values, strict=True))
        told = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in chosen.items())
        name = told if list(rows) == ["run"] else f"{row}, {told}"
        expanded[name] = {**options, **chosen}
    return expanded


def _planned(row: str, column: str, seed: int, *layers: Mapping[str, Any]) -> PlannedRun:
    configs: list[str] = []
    options: Options = {}
    for layer in layers:
        named = layer.get("config", [])
        for config in [named] if isinstance(named, str) else named:
            find(config)
            configs.append(config)
        options |= {key: value for key, value in layer.items() if key != "config"}
    return PlannedRun(row, column, seed, options, tuple(configs))


def _refuse_twins(path: Path, runs: list[PlannedRun]) -> None:
    seen: dict[Path, PlannedRun] = {}
    for run in runs:
        if run.place in seen:
            raise InputError(f"{path}: {seen[run.place].name} and {run.name} name one run folder")
        seen[run.place] = run


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
