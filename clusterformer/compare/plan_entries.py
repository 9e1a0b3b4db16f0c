"""The entries of a comparison's file: rows, columns, a grid and seeds, each checked.

A wrong entry is refused with its line.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from clusterformer.compare.plan_file import PlanFile, is_number, shorten
from clusterformer.compare.planned_run import FitOptions
from clusterformer.errors import InputError
from clusterformer.training.config_files import find
from clusterformer.wording import did_you_mean, suggested

KEYS: dict[str, type | tuple[type, ...]] = {
    "title": str,
    "config": (str, list),
    "options": dict,
    "rows": dict,
    "first": dict,
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

_SECTIONS, _OF_COLUMNS = ("columns", "first"), ("rows", "after", "trained_on")
"""Keys of what all rows are trained on, and what their entries hold beside options of `fit`."""

MAX_SEED = 2**32 - 1
MAX_NAME = 200
"""Longest name of a row or column in a file."""


def check_forms(file: PlanFile) -> None:
    """Refuse unknown keys of the file, and values of another form."""
    for key, value in file.content.items():
        if key not in KEYS:
            file.refuse(f"unknown key {shorten(key)}; allowed are {', '.join(KEYS)}", key)
        if not isinstance(value, KEYS[key]):
            file.refuse(f"{key} has the wrong form: {shorten(value)}", key)


def read_seeds(file: PlanFile) -> list[int]:
    """Read `seeds`; 0 by default."""
    seeds = file.content.get("seeds", [0])
    if not seeds or not all(type(seed) is int and 0 <= seed <= MAX_SEED for seed in seeds):
        allowed = f"whole numbers from 0 to {MAX_SEED}"
        file.refuse(f"seeds must be a list of {allowed}, got {shorten(seeds)}", "seeds")
    return list(seeds)


def read_seed_options(file: PlanFile) -> list[str]:
    """Read `seed_options`: dotted keys that get the seed too."""
    keys = file.content.get("seed_options", [])
    for key in keys:
        if not isinstance(key, str) or key == "config":
            message = f"seed_options must be options of fit, such as data.fold, got {shorten(key)}"
            file.refuse(message, "seed_options")
        check_options(file, {key: 0}, "seed_options")
    return list(keys)


def read_values(file: PlanFile, name: str) -> Mapping[str, list[Any]]:
    """Read `grid` or `choose`: lists of values of dotted keys."""
    grid = file.content.get(name, {})
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            message = f"{name}: {key}: must be a list of values, got {shorten(values)}"
            file.refuse(message, name, key)
        for value in values:
            check_options(file, {key: value}, name)
    return dict(grid)


def read_cells(file: PlanFile, rows: Mapping[str, FitOptions]) -> dict[tuple[str, str], FitOptions]:
    """Read what columns and first parts give to single rows: (column, row) to dotted keys."""
    cells: dict[tuple[str, str], FitOptions] = {}
    entries = [(key, *entry) for key in _SECTIONS for entry in file.content.get(key, {}).items()]
    for key, column, options in entries:
        special = options.get("rows", {}) if isinstance(options, dict) else {}
        if not isinstance(special, dict):
            message = f"{key}: {column}: rows must be row: dotted keys, got {shorten(special)}"
            file.refuse(message, key, column, "rows")
        for row, keys in special.items():
            at = key, column, "rows", row
            if row not in rows:
                names = suggested(str(row), rows)
                file.refuse(f"{key}: {column}: no row {shorten(row)}; {names}", *at)
            if not isinstance(keys, dict) or "config" in keys:
                file.refuse(f"{key}: {column}: {row}: must be dotted keys of fit", *at)
            check_options(file, keys, *at)
            cells[column, row] = keys
    return cells


def read_after(
    file: PlanFile, first: Mapping[str, FitOptions], columns: Mapping[str, FitOptions]
) -> dict[str, str]:
    """Read the first part that the runs of a column go on from: column to its name."""
    after: dict[str, str] = {}
    for column, options in file.content.get("columns", {}).items():
        if "after" not in (options or {}):
            continue
        at, name = ("columns", column, "after"), options["after"]
        if not isinstance(name, str) or name not in first:
            known = suggested(str(name), first) if first else "there is no `first` in the file"
            message = f"after must name a first part, got {shorten(name)}; {known}"
            file.refuse(f"columns: {column}: {message}", *at)
        if "model.init_from" in columns[column]:
            file.refuse(f"columns: {column}: after and model.init_from are two starts", *at)
        after[column] = name
    return after


def read_trained_on(
    file: PlanFile, first: Mapping[str, FitOptions], columns: Mapping[str, FitOptions]
) -> dict[str, str]:
    """Read the column or first part whose models a column only tests: column to its name."""
    content = file.content.get("columns", {})
    named = {column: options or {} for column, options in content.items()}
    tested = {column for column, options in named.items() if "trained_on" in options}
    known = [name for name in (*first, *columns) if name not in tested]
    for column in tested:
        at, name = ("columns", column, "trained_on"), named[column]["trained_on"]
        if not isinstance(name, str) or name not in known:
            message = f"trained_on must name what models are trained on, got {shorten(name)}"
            file.refuse(f"columns: {column}: {message}; {suggested(str(name), known)}", *at)
        for key in ("after", "config"):
            if key in named[column]:
                file.refuse(f"columns: {column}: {key}: its models are only tested", *at[:2], key)
    return {column: named[column]["trained_on"] for column in columns if column in tested}


def refuse_unused(
    file: PlanFile,
    first: Mapping[str, FitOptions],
    columns: Mapping[str, FitOptions],
    used: Collection[str],
) -> None:
    """Refuse first parts that no column uses, or that have the name of a column."""
    for name in first:
        if name in columns:
            file.refuse(f"first: {name} is the name of a column too", "first", name)
        if name not in used:
            file.refuse(f"first: no column stands after {shorten(name)}", "first", name)


def read_paper(
    file: PlanFile, rows: Collection[str], columns: Collection[str]
) -> Mapping[str, Mapping[str, float]]:
    """Read `paper`: row to column, or the average, to the number that the paper reports."""
    paper = file.content.get("paper", {})
    for row, numbers in paper.items():
        if not isinstance(numbers, dict) or not all(map(is_number, numbers.values())):
            message = f"paper: {row}: must be column: number, got {shorten(numbers)}"
            file.refuse(message, "paper", row)
        if row not in rows:
            file.refuse(f"paper: no row {shorten(row)}; {suggested(str(row), rows)}", "paper", row)
        for column in numbers:
            if column not in (*columns, "average"):
                names = ", ".join(map(repr, columns))  # the only one may be ""
                hint = f"{did_you_mean(str(column), columns)} there is {names}".lstrip()
                message = f"paper: {row}: no column {shorten(column)}; {hint}"
                file.refuse(message, "paper", row, column)
    return dict(paper)


def check_name(file: PlanFile, name: str, *keys: str) -> None:
    """Refuse names that spoil a terminal, a table or a directory."""
    if len(name) > MAX_NAME:
        file.refuse(f"a name of {len(name):,} characters; allowed are {MAX_NAME}", *keys)
    if name == "average" and keys[0] == "columns":
        file.refuse("columns: average is the name of the column of means", *keys)
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        file.refuse(f"name {shorten(name)} has control characters", *keys)


def check_options(file: PlanFile, options: Mapping[str, Any], *keys: str) -> None:
    """Refuse what is no dotted key of `fit`, or set by `compare`; `keys` say where it stands."""
    for key, value in options.items():
        if key in OURS:
            file.refuse(f"{key} is set by compare; remove it", *keys, key)
        if key == "columns" and keys[0] != "rows":
            file.refuse(f"{keys[0]}: only a row can name its columns", *keys, key)
        if not re.fullmatch(r"[A-Za-z_][\w.+-]*", key):
            file.refuse(f"{shorten(key)} is no option of fit, such as model.lr", *keys, key)
        if key in ("after", "trained_on") and not (keys[0] == "columns" and len(keys) == 2):
            what = "stand after a first part" if key == "after" else "test models of another"
            file.refuse(f"{keys[0]}: only a column can {what}", *keys, key)
        if key == "config":
            check_configurations(file, value, *keys, key)


def check_configurations(file: PlanFile, value: Any, *keys: str) -> None:
    """Refuse what names no configuration, and the comparison itself, which hides a shipped one."""
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) for name in names):
        file.refuse(f"config must be a name or a list of names, got {shorten(value)}", *keys)
    for name in names:
        try:
            found = find(name)
        except InputError as error:
            file.refuse(str(error), *keys)
        if found.resolve() == file.path.resolve():
            file.refuse(f"config {name} is this comparison itself; give it another name", *keys)


def read_named(file: PlanFile, key: str, default: str) -> dict[str, FitOptions]:
    """Read `rows`, `columns` or `first`: name to dotted keys; one named `default` without any."""
    named = file.content.get(key, {default: {}})
    if not named:
        file.refuse(f"{key} is empty", key)
    for name, options in named.items():
        if not isinstance(options, dict | None):
            message = f"{key}: {name}: must be dotted keys, got {shorten(options)}"
            file.refuse(message, key, name)
        check_name(file, name, key, name)
        check_options(file, options or {}, key, name)
    return {
        name: {k: v for k, v in (options or {}).items() if key == "rows" or k not in _OF_COLUMNS}
        for name, options in named.items()
    }


def combinations(file: PlanFile, grid: Mapping[str, list[Any]], key: str) -> dict[str, FitOptions]:
    """Name every combination of values, such as "lr=0.01"; one without a name for no values."""
    found: dict[str, FitOptions] = {}
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        label = ", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in chosen.items())
        check_name(file, label, key)
        if label in found:
            file.refuse(f"two rows are named {shorten(label)}", key)
        found[label] = chosen
    return found


def read_columns_of(
    file: PlanFile, row: str, options: FitOptions, columns: Sequence[str]
) -> list[str]:
    """List the columns that a row stands in: all, or those that it names."""
    chosen = options.get("columns", columns)
    names = [str(name) for name in chosen] if isinstance(chosen, list) else []
    if not names or not {*names} <= {*columns}:
        message = f"columns must be a list of {', '.join(columns)}, got {shorten(chosen)}"
        file.refuse(f"rows: {row}: {message}", "rows", row, "columns")
    return names


def expand(
    file: PlanFile, rows: dict[str, FitOptions], grid: Mapping[str, list[Any]]
) -> dict[str, tuple[str, FitOptions]]:
    """Make a row for each combination of the grid: its name in the file, and its options."""
    expanded: dict[str, tuple[str, FitOptions]] = {}
    for row, options in rows.items():
        for label, chosen in combinations(file, grid, "grid").items():
            name = ", ".join(filter(None, ["" if label and list(rows) == ["run"] else row, label]))
            check_name(file, name, "grid")
            expanded[name] = row, {**options, **chosen}
    return expanded
