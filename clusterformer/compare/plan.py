"""The plan of a comparison: runs from a YAML file of rows, columns, a grid and seeds."""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clusterformer.compare.plan_file import PlanFile, is_number, shorten
from clusterformer.compare.planned_run import FitOptions, PlannedRun
from clusterformer.errors import InputError, reading
from clusterformer.training.config_files import comparisons, find

KEYS: dict[str, type | tuple[type, ...]] = {
    "title": str,
    "config": (str, list),
    "options": dict,
    "rows": dict,
    "columns": dict,
    "grid": dict,
    "choose": dict,
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
    `rows` and `columns` (name to dotted keys, among them `config`; a row with `columns` stands in
    those alone, and `rows` of a column holds further options of single rows in it), `grid` (dotted
    key to a list of values; each combination makes further rows), `choose` (likewise, but
    validation chooses one combination for each row and column), `seeds`, `seed_options` (dotted
    keys that get the seed too, such as data.fold), `skip_absent` (whether to leave out columns
    whose data set is not here), and for the table `title`, `metric`, `baseline` and `paper`.

    Raises:
        InputError: if it holds anything else, no run, too many, or two runs of one name.
    """
    file = PlanFile(path)
    _check_forms(file)
    content = file.content
    seeds = _seeds(file)
    follow = _seed_options(file)
    rows = _named(file, "rows", "run")
    cells = _cells(file, rows)
    columns = _named(file, "columns", "")
    grid, choose = _grid(file, "grid"), _grid(file, "choose")
    values = [*grid.values(), *choose.values()]
    number = len(rows) * len(columns) * len(seeds) * math.prod(map(len, values))
    if number > MAX_RUNS:
        file.refuse(f"{number:,} runs are more than {MAX_RUNS:,}; split the file", "grid")
    stands_in = {row: _stands_in(file, row, rows[row], list(columns)) for row in rows}
    expanded = _expand(file, rows, grid)
    choices = _combinations(file, choose, "choose")
    shared = {**content.get("options", {}), "config": content.get("config", [])}
    _check_options(file, shared, "options")
    with reading(path, "a comparison"):
        runs = [
            _planned(
                (row, column, seed, choice), shared, options, columns[column],
                {**cells.get((column, base), {}), **chosen, **dict.fromkeys(follow, seed)},
            )
            for seed in seeds  # first, so that what was interrupted has every row
            for column in columns
            for row, (base, options) in expanded.items()
            if column in stands_in[base]
            for choice, chosen in choices.items()
        ]  # fmt: skip
    _refuse_duplicates(file, runs)
    baseline = content.get("baseline")
    if baseline is not None and baseline not in expanded:
        names = ", ".join(list(expanded)[:20])
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


def _grid(file: PlanFile, name: str) -> Mapping[str, list[Any]]:
    """Read `grid` or `choose`: lists of values of dotted keys."""
    grid = file.content.get(name, {})
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            message = f"{name}: {key}: must be a list of values, got {shorten(values)}"
            file.refuse(message, name, key)
        for value in values:
            _check_options(file, {key: value}, name)
    return dict(grid)


def _cells(file: PlanFile, rows: Mapping[str, FitOptions]) -> dict[tuple[str, str], FitOptions]:
    """Read the options that columns give to single rows: (column, row) to dotted keys."""
    cells: dict[tuple[str, str], FitOptions] = {}
    for column, options in file.content.get("columns", {}).items():
        special = options.get("rows", {}) if isinstance(options, dict) else {}
        if not isinstance(special, dict):
            message = f"columns: {column}: rows must be row: dotted keys, got {shorten(special)}"
            file.refuse(message, "columns", column, "rows")
        for row, keys in special.items():
            at = "columns", column, "rows", row
            if row not in rows:
                names = ", ".join(list(rows)[:20])
                file.refuse(f"columns: {column}: no row {shorten(row)}; there are {names}", *at)
            if not isinstance(keys, dict) or "config" in keys:
                file.refuse(f"columns: {column}: {row}: must be dotted keys of fit", *at)
            _check_options(file, keys, *at)
            cells[column, row] = keys
    return cells


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
        if key == "columns" and keys[0] != "rows":
            file.refuse(f"{keys[0]}: only a row can name its columns", *keys, key)
        if not re.fullmatch(r"[A-Za-z_][\w.+-]*", key):
            file.refuse(f"{shorten(key)} is no option of fit, such as model.lr", *keys, key)
        if key == "config":
            names = value if isinstance(value, list) else [value]
            if not all(isinstance(name, str) for name in names):
                message = f"config must be a name or a list of names, got {shorten(value)}"
                file.refuse(message, *keys, key)


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
    return {
        name: {k: v for k, v in (options or {}).items() if (key, k) != ("columns", "rows")}
        for name, options in named.items()
    }


def _combinations(file: PlanFile, grid: Mapping[str, list[Any]], key: str) -> dict[str, FitOptions]:
    """Name every combination of values, such as "lr=0.01"; one without a name for no values."""
    found: dict[str, FitOptions] = {}
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        label = ", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in chosen.items())
        _check_name(file, label, key)
        if label in found:
            file.refuse(f"two rows are named {shorten(label)}", key)
        found[label] = chosen
    return found


def _stands_in(file: PlanFile, row: str, options: FitOptions, columns: Sequence[str]) -> list[str]:
    """List the columns that a row stands in: all, or those that it names."""
    chosen = options.get("columns", columns)
    names = [str(name) for name in chosen] if isinstance(chosen, list) else []
    if not names or not {*names} <= {*columns}:
        message = f"columns must be a list of {', '.join(columns)}, got {shorten(chosen)}"
        file.refuse(f"rows: {row}: {message}", "rows", row, "columns")
    return names


def _expand(
    file: PlanFile, rows: dict[str, FitOptions], grid: Mapping[str, list[Any]]
) -> dict[str, tuple[str, FitOptions]]:
    """Make a row for each combination of the grid: its name in the file, and its options."""
    expanded: dict[str, tuple[str, FitOptions]] = {}
    for row, options in rows.items():
        for label, chosen in _combinations(file, grid, "grid").items():
            name = ", ".join(filter(None, ["" if label and list(rows) == ["run"] else row, label]))
            _check_name(file, name, "grid")
            expanded[name] = row, {**options, **chosen}
    return expanded


def _planned(name: tuple[str, str, int, str], *layers: FitOptions) -> PlannedRun:
    """Plan a run from the options of all, of its row, of its column, and its own.

    Args:
        name: Row, column, seed and choice.
        layers: The options.
    """
    shared, model, data, own = layers
    configs: list[str] = []
    for layer in (shared, data, model):  # what a model overlays goes over its data's configuration
        named = layer.get("config", [])
        for config in [named] if isinstance(named, str) else named:
            find(config)
            configs.append(config)
    options: FitOptions = {}
    for layer in (shared, model, data, own):
        options |= {key: layer[key] for key in layer if key not in ("config", "columns")}
    row, column, seed, choice = name
    return PlannedRun(row, column, seed, options, tuple(configs), choice)


def _refuse_duplicates(file: PlanFile, runs: list[PlannedRun]) -> None:
    seen: dict[str, PlannedRun] = {}
    for run in runs:
        folder = str(run.subfolder).casefold()  # some disks do not tell A from a
        other = seen.setdefault(folder, run)
        if other is not run:
            file.refuse(f"{other.name} and {run.name} name one run directory", "rows", run.row)
