"""The plan of a comparison: runs from a YAML file of rows, columns, a grid and seeds."""

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
from clusterformer.training.config_files import comparisons, find

FitOptions = dict[str, Any]
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
        row: Name of the model, such as a mechanism.
        column: Name of the data set; "" if there is only one column.
        seed: Seed of the run.
        options: Dotted keys of `fit`, without configurations.
        configs: Configurations, each overlaying those before it.
    """

    row: str
    column: str
    seed: int
    options: FitOptions
    configs: tuple[str, ...]

    @property
    def subfolder(self) -> Path:
        """Directory of the run, below that of the comparison."""
        return Path(slug(self.row)) / slug(self.column or "all") / f"seed-{self.seed}"

    @property
    def name(self) -> str:
        """Row, column and seed, for people."""
        on = f" on {self.column}" if self.column else ""
        return f"{self.row}{on}, seed {self.seed}"

    def arguments(self) -> list[str]:
        """Return the arguments of `clusterformer fit`."""
        configs = [word for config in self.configs for word in ("--config", config)]
        values = [f"--{key}={_as_argument(value)}" for key, value in self.options.items()]
        return [*configs, *values, f"--seed_everything={self.seed}"]


@dataclass(frozen=True)
class Plan:
    """A comparison.

    Attributes:
        title: Title of the page.
        runs: Runs, ordered by row, column and seed.
        metric: Measure to compare, such as "test/accuracy"; None for that of the task.
        baseline: Row to test the others against; None for the first.
        paper: Row to column to the number that the paper reports, shown below ours.
    """

    title: str
    runs: list[PlannedRun]
    metric: str | None = None
    baseline: str | None = None
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def find_plan(name: str) -> Path:
    """Find the file of a comparison: a path, or the name of a shipped one.

    Raises:
        InputError: if there is neither.
    """
    if Path(name).is_file():
        return Path(name)
    known = comparisons()
    found = known.get(name) or known.get(f"{name}.yaml")
    if found is None:
        raise InputError(
            f"no comparison {name!r}, neither a file nor a shipped one; "
            f"there is {', '.join(known) or 'none'}"
        )
    return found


def read_plan(path: Path) -> Plan:
    """Read the file of a comparison.

    The file holds `config` (one or several, for all runs), `options` (dotted keys, for all runs),
    `rows` and `columns` (name to dotted keys, among them `config`), `grid` (dotted key to a list of
    values; each combination makes further rows), `seeds`, and for the table `title`, `metric`,
    `baseline` and `paper`.

    Raises:
        InputError: if it holds anything else, no run, or two runs of one name.
    """
    content = _read_yaml(path)
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
    _refuse_duplicates(path, runs)
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


def _read_yaml(path: Path) -> dict[str, Any]:
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
    return content


def slug(name: str) -> str:
    """Turn a name into the name of a directory."""
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", name).strip("-") or "run"


def _named(path: Path, content: Mapping[str, Any], key: str, default: str) -> dict[str, FitOptions]:
    named = content.get(key, {default: {}})
    if not named:
        raise InputError(f"{path}: {key} is empty")
    for name, options in named.items():
        if not isinstance(options, dict | None):
            raise InputError(f"{path}: {key}: {name}: must be dotted keys, got {options!r}")
    return {str(name): options or {} for name, options in named.items()}


def _expand(
    path: Path, rows: dict[str, FitOptions], grid: Mapping[str, Any]
) -> dict[str, FitOptions]:
    """Make a row for each combination of the grid's values."""
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
        label = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in chosen.items())
        name = label if list(rows) == ["run"] else f"{row}, {label}"
        expanded[name] = {**options, **chosen}
    return expanded


def _planned(row: str, column: str, seed: int, *layers: Mapping[str, Any]) -> PlannedRun:
    configs: list[str] = []
    options: FitOptions = {}
    for layer in layers:
        named = layer.get("config", [])
        for config in [named] if isinstance(named, str) else named:
            find(config)
            configs.append(config)
        options |= {key: value for key, value in layer.items() if key != "config"}
    return PlannedRun(row, column, seed, options, tuple(configs))


def _refuse_duplicates(path: Path, runs: list[PlannedRun]) -> None:
    seen: dict[Path, PlannedRun] = {}
    for run in runs:
        other = seen.setdefault(run.subfolder, run)
        if other is not run:
            raise InputError(f"{path}: {other.name} and {run.name} name one run directory")


def _as_argument(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
