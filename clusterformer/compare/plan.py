"""The plan of a comparison: runs from a YAML file of rows, columns, a grid and seeds."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clusterformer.compare.plan_file import PlanFile, is_number, shorten
from clusterformer.errors import InputError, reading
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
    "seed_options": list,
    "metric": str,
    "also": list,
    "baseline": str,
    "paper": dict,
    "skip_absent": bool,
}

OURS = ("seed_everything", "runs", "resume")
"""Options of `fit` that the comparison sets."""

MAX_RUNS = 5_000
MAX_SEED = 2**32 - 1
MAX_NAME = 200
"""Longest name of a row or column in a file."""

MAX_SLUG = 100


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
        return in_order([*configs, *values, f"--seed_everything={self.seed}"])


def in_order(arguments: Sequence[str]) -> list[str]:
    """Put configurations first, as they overlay one another, then options by name.

    So a class, such as --model.attention, stands before its own options.
    """
    options = [word for word in arguments if word.startswith("--") and "=" in word]
    configs = [word for word in arguments if word not in options]
    return [*configs, *sorted(options, key=lambda word: word.partition("=")[0])]


@dataclass(frozen=True)
class Plan:
    """A comparison.

    Attributes:
        title: Title of the page.
        runs: Runs, ordered by seed, column and row.
        metric: Measure to compare, such as "test/accuracy"; None for that of the task.
        also: Further measures, whose mean over all columns stands beside the costs.
        baseline: Row to test the others against; None for the first.
        paper: Row to column to the number that the paper reports, shown below ours.
        skip_absent: Whether to leave out columns whose data set is not on this machine.
    """

    title: str
    runs: list[PlannedRun]
    metric: str | None = None
    also: Sequence[str] = ()
    baseline: str | None = None
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    skip_absent: bool = False

    def part(
        self,
        rows: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        seeds: int | None = None,
    ) -> Plan:
        """Return the plan of some rows, some columns and the first seeds; None for all.

        Raises:
            InputError: if it has no such row or column.
        """
        runs = self.runs
        for kind, names in (("row", rows), ("column", columns)):
            known = list(dict.fromkeys(getattr(run, kind) for run in runs))
            for name in names or ():
                if name not in known:
                    raise InputError(f"no {kind} {name!r}; there is {', '.join(known)}")
            runs = [run for run in runs if names is None or getattr(run, kind) in names]
        first = list(dict.fromkeys(run.seed for run in runs))[:seeds]
        return replace(self, runs=[run for run in runs if run.seed in first])


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
    values; each combination makes further rows), `seeds`, `seed_options` (dotted keys that get the
    seed too, such as data.fold), `skip_absent` (whether to leave out columns whose data set is not
    here), and for the table `title`, `metric`, `baseline` and `paper`.

    Raises:
        InputError: if it holds anything else, no run, too many, or two runs of one name.
    """
    file = PlanFile(path)
    _check_forms(file)
    content = file.content
    seeds = _seeds(file)
    follow = _seed_options(file)
    rows, columns = _named(file, "rows", "run"), _named(file, "columns", "")
    grid = _grid(file)
    number = len(rows) * len(columns) * len(seeds) * math.prod(map(len, grid.values()))
    if number > MAX_RUNS:
        file.refuse(f"{number:,} runs are more than {MAX_RUNS:,}; split the file", "grid")
    rows = _expand(file, rows, grid)
    shared = {**content.get("options", {}), "config": content.get("config", [])}
    _check_options(file, shared, "options")
    with reading(path, "a comparison"):
        runs = [
            _planned(
                row, column, seed, shared, rows[row], columns[column], dict.fromkeys(follow, seed)
            )
            for seed in seeds  # first, so that what was interrupted has every row
            for column in columns
            for row in rows
        ]
    _refuse_duplicates(file, runs)
    baseline = content.get("baseline")
    if baseline is not None and baseline not in rows:
        names = ", ".join(list(rows)[:20])
        file.refuse(f"no row {shorten(baseline)} for a baseline; there are {names}", "baseline")
    title = content.get("title", path.stem.replace("-", " "))
    _check_name(file, title, "title")
    also = content.get("also", [])
    if not all(isinstance(name, str) for name in also):
        file.refuse(f"also must be names of measures, got {shorten(also)}", "also")
    skip = content.get("skip_absent", False)
    return Plan(title, runs, content.get("metric"), also, baseline, _paper(file), skip)


def _check_forms(file: PlanFile) -> None:
    for key, value in file.content.items():
        if key not in KEYS:
            file.refuse(f"unknown key {shorten(key)}; allowed are {', '.join(KEYS)}", key)
        if not isinstance(value, KEYS[key]):
            file.refuse(f"{key} has the wrong form: {shorten(value)}", key)


def _seeds(file: PlanFile) -> list[int]:
    seeds = file.content.get("seeds", [0])
    if not seeds or not all(type(seed) is int and 0 <= seed <= MAX_SEED for seed in seeds):
        allowed = f"whole numbers from 0 to {MAX_SEED}"
        file.refuse(f"seeds must be a list of {allowed}, got {shorten(seeds)}", "seeds")
    return list(seeds)


def _seed_options(file: PlanFile) -> list[str]:
    keys = file.content.get("seed_options", [])
    for key in keys:
        if not isinstance(key, str) or key == "config":
            message = f"seed_options must be options of fit, such as data.fold, got {shorten(key)}"
            file.refuse(message, "seed_options")
        _check_options(file, {key: 0}, "seed_options")
    return list(keys)


def _grid(file: PlanFile) -> Mapping[str, list[Any]]:
    grid = file.content.get("grid", {})
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            message = f"grid: {key}: must be a list of values, got {shorten(values)}"
            file.refuse(message, "grid", key)
        for value in values:
            _check_options(file, {key: value}, "grid")
    return dict(grid)


def _paper(file: PlanFile) -> Mapping[str, Mapping[str, float]]:
    paper = file.content.get("paper", {})
    for row, columns in paper.items():
        if not isinstance(columns, dict) or not all(map(is_number, columns.values())):
            message = f"paper: {row}: must be column: number, got {shorten(columns)}"
            file.refuse(message, "paper", row)
    return dict(paper)


def _check_name(file: PlanFile, name: str, *keys: str) -> None:
    """Refuse names that spoil a terminal, a table or a directory."""
    if len(name) > MAX_NAME:
        file.refuse(f"a name of {len(name):,} characters; allowed are {MAX_NAME}", *keys)
    if name == "average" and keys[0] == "columns":
        file.refuse("columns: average is the name of the column of means", *keys)
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        file.refuse(f"name {shorten(name)} has control characters", *keys)


def _check_options(file: PlanFile, options: Mapping[str, Any], *keys: str) -> None:
    for key, value in options.items():
        if key in OURS:
            file.refuse(f"{key} is set by compare; remove it", *keys, key)
        if not re.fullmatch(r"[A-Za-z_][\w.+-]*", key):
            file.refuse(f"{shorten(key)} is no option of fit, such as model.lr", *keys, key)
        if key == "config":
            names = value if isinstance(value, list) else [value]
            if not all(isinstance(name, str) for name in names):
                message = f"config must be a name or a list of names, got {shorten(value)}"
                file.refuse(message, *keys, key)


def slug(name: str) -> str:
    """Turn a name into the name of a directory: never hidden, empty, ".." or too long."""
    safe = re.sub(r"[^A-Za-z0-9.=_-]+", "-", name).strip("-.") or "run"
    if len(safe) <= MAX_SLUG:
        return safe
    return f"{safe[:MAX_SLUG]}-{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"


def _named(file: PlanFile, key: str, default: str) -> dict[str, FitOptions]:
    named = file.content.get(key, {default: {}})
    if not named:
        file.refuse(f"{key} is empty", key)
    for name, options in named.items():
        if not isinstance(options, dict | None):
            message = f"{key}: {name}: must be dotted keys, got {shorten(options)}"
            file.refuse(message, key, name)
        _check_name(file, name, key, name)
        _check_options(file, options or {}, key, name)
    return {name: options or {} for name, options in named.items()}


def _expand(
    file: PlanFile, rows: dict[str, FitOptions], grid: Mapping[str, list[Any]]
) -> dict[str, FitOptions]:
    """Make a row for each combination of the grid's values."""
    if not grid:
        return rows
    expanded: dict[str, FitOptions] = {}
    for (row, options), values in itertools.product(
        rows.items(), itertools.product(*grid.values())
    ):
        chosen = dict(zip(grid, values, strict=True))
        label = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in chosen.items())
        name = label if list(rows) == ["run"] else f"{row}, {label}"
        _check_name(file, name, "grid")
        if name in expanded:
            file.refuse(f"two rows are named {shorten(name)}", "grid")
        expanded[name] = {**options, **chosen}
    return expanded


def _planned(row: str, column: str, seed: int, *layers: Mapping[str, Any]) -> PlannedRun:
    """Plan a run from the options of all, of its row, of its column, and those of its seed."""
    shared, model, data, follow = layers
    configs: list[str] = []
    for layer in (shared, data, model):  # what a model overlays goes over its data's configuration
        named = layer.get("config", [])
        for config in [named] if isinstance(named, str) else named:
            find(config)
            configs.append(config)
    options: FitOptions = {}
    for layer in (shared, model, data, follow):
        options |= {key: value for key, value in layer.items() if key != "config"}
    return PlannedRun(row, column, seed, options, tuple(configs))


def _refuse_duplicates(file: PlanFile, runs: list[PlannedRun]) -> None:
    seen: dict[str, PlannedRun] = {}
    for run in runs:
        folder = str(run.subfolder).casefold()  # some disks do not tell A from a
        other = seen.setdefault(folder, run)
        if other is not run:
            file.refuse(f"{other.name} and {run.name} name one run directory", "rows", run.row)


def _as_argument(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
