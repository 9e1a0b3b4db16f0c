"""The plan of a comparison: runs from a YAML file of rows, columns, a grid and seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clusterformer.compare.plan_entries import (
    check_configurations,
    check_forms,
    check_name,
    check_options,
    combinations,
    expand,
    read_after,
    read_cells,
    read_columns_of,
    read_named,
    read_paper,
    read_seed_options,
    read_seeds,
    read_trained_on,
    read_values,
    refuse_unused,
)
from clusterformer.compare.plan_file import PlanFile, shorten
from clusterformer.compare.planned_run import FitOptions, PlannedRun, with_runs_before
from clusterformer.compare.run_options import RunOptions
from clusterformer.errors import InputError, reading
from clusterformer.training.config_files import comparisons, find
from clusterformer.wording import suggested

MAX_RUNS = 5_000


@dataclass(frozen=True)
class Plan:
    """A comparison.

    Attributes:
        title: Title of the page.
        runs: Runs of the table, ordered by seed, column and row.
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

    @property
    def all_runs(self) -> list[PlannedRun]:
        """Runs of the table, each after the runs that it goes on from, or whose model it tests."""
        return with_runs_before(self.runs)

    def part(
        self,
        rows: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        seeds: int | None = None,
    ) -> Plan:
        """Return the plan of some rows, some columns and the first seeds; None for all.

        Raises:
            InputError: if it has no such row or column, or not so many seeds.
        """
        runs = self.runs
        for kind, names in (("row", rows), ("column", columns)):
            known = list(dict.fromkeys(getattr(run, kind) for run in runs))
            for name in names or ():
                if name not in known:
                    raise InputError(f"no {kind} {name!r}; {suggested(name, known)}")
            runs = [run for run in runs if names is None or getattr(run, kind) in names]
        known = list(dict.fromkeys(run.seed for run in runs))
        if seeds is not None and seeds > len(known):
            raise InputError(f"no {seeds} seeds; there are {', '.join(map(str, known))}")
        return replace(self, runs=[run for run in runs if run.seed in known[:seeds]])


def find_plan(name: str) -> Path:
    """Find the file of a comparison: a path, or the name of a shipped one.

    Raises:
        InputError: if there is neither.
    """
    return find(name, comparisons(), "comparison")


def read_plan(path: Path) -> Plan:
    """Read the file of a comparison.

    Its keys:

    - `config`: one configuration or several, for all runs.
    - `options`: dotted keys, for all runs.
    - `rows`, `columns`: name to dotted keys, among them `config`. A row with `columns` stands in
      these only. `rows` of a column holds further options of single rows in it.
    - `first`: like `columns`, but trained before, and not in the table. A column whose `after`
      names one goes on from its weights, each run from that of its row and seed. Rows whose
      options are the same in it share one.
    - `trained_on`, in a column: the column or first part whose models it tests, untrained, with
      its own options.
    - `grid`: dotted key to a list of values; each combination makes further rows.
    - `choose`: likewise, but validation chooses one combination for each row and column. A row
      with `method` has no validation, and one run without these values.
    - `seeds`; `seed_options`: dotted keys that get the seed too, such as data.fold.
    - `skip_absent`: whether to leave out columns whose data set is not here.
    - `title`, `metric`, `baseline` and `paper`, for the table.

    Raises:
        InputError: if it holds anything else, no run, too many, or two runs of one name.
    """
    file = PlanFile(path)
    check_forms(file)
    content, seeds, seeded = file.content, read_seeds(file), read_seed_options(file)
    rows = read_named(file, "rows", "run")
    cells = read_cells(file, rows)
    columns = read_named(file, "columns", "")
    first = read_named(file, "first", "") if "first" in content else {}
    trained_on = read_trained_on(file, first, columns)
    after = read_after(file, first, columns)
    refuse_unused(file, first, columns, {*after.values(), *trained_on.values()})
    grid, choose = read_values(file, "grid"), read_values(file, "choose")
    number = len(rows) * (len(first) + len(columns)) * len(seeds)
    number *= math.prod(len(values) for values in (*grid.values(), *choose.values()))
    if number > MAX_RUNS:
        file.refuse(f"{number:,} runs are more than {MAX_RUNS:,}; split the file", "grid")
    follow = dict.fromkeys(seeded)
    settings = _settings(rows, columns, first, cells)
    _refuse_twice(file, "grid", grid, {"choose": choose, "seed_options": follow, **settings})
    _refuse_twice(file, "choose", choose, {"seed_options": follow, **settings})
    _refuse_twice(file, "seed_options", follow, settings)
    stands_in = {row: read_columns_of(file, row, rows[row], list(columns)) for row in rows}
    shared = {**content.get("options", {}), "config": content.get("config", [])}
    check_options(file, content.get("options", {}), "options")
    check_configurations(file, shared["config"], "config")
    options = RunOptions(
        shared=shared,
        rows=expand(file, rows, grid),
        columns={**first, **columns},
        cells=cells,
        choices=combinations(file, choose, "choose"),
        seeded=seeded,
        after=after,
        trained_on=trained_on,
    )
    with reading(path, "a comparison"):
        runs = [
            options.plan(row, column, seed, choice)
            for seed in seeds  # first, so that what was interrupted has every row
            for column in columns
            for row in options.rows_of(column, stands_in)
            for choice in options.choices_of(row)
        ]
    _refuse_duplicates(file, runs)
    _refuse_duplicates(file, with_runs_before(runs))
    return _plan_of(file, runs, list(options.rows), list(columns))


def _plan_of(
    file: PlanFile, runs: list[PlannedRun], rows: Sequence[str], columns: Sequence[str]
) -> Plan:
    """Join the runs and what the file says of their table."""
    content = file.content
    baseline = content.get("baseline")
    if baseline is not None and baseline not in rows:
        names = suggested(str(baseline), rows)
        file.refuse(f"no row {shorten(baseline)} for a baseline; {names}", "baseline")
    title = content.get("title", file.path.stem.replace("-", " "))
    check_name(file, title, "title")
    also = content.get("also", [])
    if not all(isinstance(name, str) for name in also):
        file.refuse(f"also must be names of measures, got {shorten(also)}", "also")
    return Plan(
        title=title,
        runs=runs,
        metric=content.get("metric"),
        also=also,
        baseline=baseline,
        paper=read_paper(file, rows, columns),
        skip_absent=content.get("skip_absent", False),
    )


def _settings(
    rows: Mapping[str, FitOptions],
    columns: Mapping[str, FitOptions],
    first: Mapping[str, FitOptions],
    cells: Mapping[tuple[str, str], FitOptions],
) -> dict[str, FitOptions]:
    """Name each set of options of a row, a column or their cell by where it is in the file."""
    settings = {f"rows: {name}": options for name, options in rows.items()}
    settings |= {f"columns: {name}": options for name, options in columns.items()}
    settings |= {f"first: {name}": options for name, options in first.items()}
    for (column, row), options in cells.items():
        kind = "first" if column in first else "columns"
        settings[f"{kind}: {column}: rows: {row}"] = options
    return settings


def _refuse_twice(
    file: PlanFile, name: str, values: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]
) -> None:
    """Refuse a key of `grid` and the like that something else sets too: one would be ignored."""
    why = {
        "grid": "names rows",
        "choose": "is chosen by validation",
        "seed_options": "follows the seed",
    }[name]
    for other, options in others.items():
        for key in values:
            if key in options and key != "config":  # configurations add up
                file.refuse(f"{name}: {key} {why}, and {other} sets it too", name, key)


def _refuse_duplicates(file: PlanFile, runs: list[PlannedRun]) -> None:
    seen: dict[str, PlannedRun] = {}
    for run in runs:
        folder = str(run.subfolder).casefold()  # some disks do not tell A from a
        other = seen.setdefault(folder, run)
        if other is not run:
            file.refuse(f"{other.name} and {run.name} name one run directory", "rows", run.row)
