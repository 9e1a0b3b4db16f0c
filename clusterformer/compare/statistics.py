"""Mean, standard deviation and costs of results: the numbers of the table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterformer.compare.choosing import Choice
from clusterformer.compare.notes import (
    absent_measures,
    missing_runs,
    mixed_cells,
    mixed_columns,
    twin_rows,
    unlimited_methods,
    unselected_cells,
)
from clusterformer.compare.planned_run import PlannedRun, name_cell
from clusterformer.compare.results import Result
from clusterformer.compare.significance import MIN_SEEDS, PairedTest, sign_flip_test
from clusterformer.errors import InputError
from clusterformer.training.monitoring import mode_of
from clusterformer.wording import suggested

AVERAGE = "average"
"""Name of the column with the mean over all columns."""


@dataclass(frozen=True)
class Cell:
    """The results of one row in one column.

    Attributes:
        values: One value for each seed.
        mean: Mean of the values.
        spread: Standard deviation of the values; None for a single one.
        best: Whether no row has a better mean in this column.
    """

    values: Sequence[float]
    mean: float
    spread: float | None
    best: bool


@dataclass(frozen=True)
class Summary:
    """The table of a comparison.

    Attributes:
        metrics: Column to the measure in its cells.
        mode: "max" or "min", for whether higher or lower values are better.
        rows, columns: Names in order; with several columns the last is their average.
        cells: (row, column) to its cell; there is none where a run is missing.
        significance: Row to the test of its differences from the baseline, where there are enough.
        baseline: Row that the others are tested against.
        costs: Row to the mean share of keys that a token sees, parameters, seconds an epoch, peak
            MiB and epochs to converge.
        results: Results that the table was made from.
        paper: Row to column to the number that the paper reports.
        choices: What validation chose for rows and columns that have a choice.
        notes: Lines on files that are damaged, and on runs that are left out.
    """

    metrics: Mapping[str, str]
    mode: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Mapping[tuple[str, str], Cell]
    significance: Mapping[str, PairedTest]
    baseline: str
    costs: Mapping[str, Mapping[str, float]]
    results: Sequence[Result]
    paper: Mapping[str, Mapping[str, float]]
    choices: Sequence[Choice] = ()
    notes: Sequence[str] = ()

    @property
    def metric(self) -> str:
        """Names of the measures in the cells, for people."""
        return ", ".join(dict.fromkeys(self.metrics.values()))

    @property
    def cost_names(self) -> list[str]:
        """Names of the costs that any row has."""
        return list(dict.fromkeys(name for costs in self.costs.values() for name in costs))

    @property
    def num_runs(self) -> int:
        """Number of trainings; further tests of their models add none."""
        return len({result.training for result in self.results})

    def costs_of(self, row: str) -> list[float]:
        """Return the costs of a row, in the order of their names; NaN where there is none."""
        return [self.costs[row].get(name, math.nan) for name in self.cost_names]

    def value(self, result: Result) -> float:
        """Return the measure of a run that the table shows."""
        return result.measures[self.metrics[result.column]]


def summarise(
    results: Sequence[Result],
    metric: str | None = None,
    baseline: str | None = None,
    paper: Mapping[str, Mapping[str, float]] | None = None,
    also: Sequence[str] = (),
    choices: Sequence[Choice] = (),
    unfinished: Sequence[PlannedRun] = (),
) -> Summary:
    """Make the table of finished runs.

    Args:
        results: Results of the runs, at least one.
        metric: Measure; None: for each column the test value of the measure that chose the
            checkpoint, or its validation value where no run has a test value. Runs without it are
            left out, and noted.
        baseline: Row to test the others against; None: the first.
        paper: Row to column to the number that the paper reports.
        also: Further measures, to stand beside the costs.
        choices: What validation chose.
        unfinished: Planned runs that have no result, to be named in a note.

    Raises:
        InputError: if there is no run, all runs lack the metric, or higher values are better in one
            column and lower ones in another.
    """
    if not results:
        raise InputError("no finished run to compare")
    metrics = {
        column: metric or _own_metric([r for r in results if r.column == column])
        for column in dict.fromkeys(result.column for result in results)
    }
    notes = [line for result in results for line in result.damage]
    results, left_out = _one_a_seed(results, metrics)
    notes += left_out
    notes += missing_runs(unfinished) + mixed_columns(results) + mixed_cells(results)
    notes += unlimited_methods(results) + twin_rows(results) + unselected_cells(results)
    notes += absent_measures(results, also)
    rows = list(dict.fromkeys(result.row for result in results))
    columns = list(dict.fromkeys(result.column for result in results))
    metrics = {column: metrics[column] for column in columns}
    mode = _mode(results, metrics)
    values: dict[tuple[str, str], dict[int, float]] = {}
    for result in results:
        cell = values.setdefault((result.row, result.column), {})
        cell[result.seed] = result.measures[metrics[result.column]]
    if len(columns) > 1:
        values |= _averages(values, rows, columns)
        columns = [*columns, AVERAGE]
    if baseline is not None and baseline not in rows:
        notes.append(f"{baseline} has no finished run; the others are compared with {rows[0]}")
    baseline = baseline if baseline in rows else rows[0]
    trained_on = {result.column: result.training[1] for result in results}
    return Summary(
        metrics,
        mode,
        rows,
        columns,
        _cells(values, mode),
        {
            row: tested
            for row in rows
            if (tested := _significance(values, row, baseline, trained_on))
        },
        baseline,
        {row: _costs([result for result in results if result.row == row], also) for row in rows},
        results,
        paper or {},
        choices,
        notes,
    )


def _one_a_seed(
    results: Sequence[Result], metrics: Mapping[str, str]
) -> tuple[list[Result], list[str]]:
    """Leave out runs without the metric, and all but the last of a row, a column and a seed."""
    whole = [result for result in results if metrics[result.column] in result.measures]
    notes = []
    for result in results:
        if metrics[result.column] not in result.measures:
            line = f"{result.row}, seed {result.seed} has no {metrics[result.column]!r}"
            if not whole:
                known = [name for name in result.measures if "layer" not in name]
                raise InputError(f"{line}; {suggested(metrics[result.column], known)}")
            notes.append(f"left out: {line}")
    latest = {(result.row, result.column, result.seed): result for result in whole}
    for result in whole:
        if latest[result.row, result.column, result.seed] is not result:
            name = name_cell(result.row, result.column)
            notes.append(f"left out: {name} has another run of seed {result.seed}")
    return list(latest.values()), notes


def _averages(
    values: Mapping[tuple[str, str], Mapping[int, float]],
    rows: Sequence[str],
    columns: Sequence[str],
) -> dict[tuple[str, str], dict[int, float]]:
    """Compute the mean over all columns, for each seed that all of them have."""
    averages = {}
    for row in rows:
        cells = [values.get((row, column), {}) for column in columns]
        if seeds := set.intersection(*map(set, cells)):
            averages[row, AVERAGE] = {
                seed: statistics.fmean(cell[seed] for cell in cells) for seed in sorted(seeds)
            }
    return averages


def _mode(results: Sequence[Result], metrics: Mapping[str, str]) -> str:
    modes = {
        r.mode if _measures_same(metrics[r.column], r.monitor) else mode_of(metrics[r.column])
        for r in results
    }
    if len(modes) > 1:
        names = ", ".join(dict.fromkeys(metrics.values()))
        raise InputError(f"more is better in some and less in others of {names}; choose a --metric")
    return modes.pop()


def _cells(values: Mapping[tuple[str, str], dict[int, float]], mode: str) -> dict[Any, Cell]:
    means = {key: statistics.fmean(cell.values()) for key, cell in values.items()}
    choose = max if mode == "max" else min
    best = {
        column: choose(found)
        for column in {column for _, column in means}
        if (found := [m for (_, c), m in means.items() if c == column and math.isfinite(m)])
    }
    return {
        (row, column): Cell(
            list(cell.values()),
            means[row, column],
            _deviation(list(cell.values())),
            math.isclose(means[row, column], best.get(column, math.nan)),
        )
        for (row, column), cell in values.items()
    }


def _deviation(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    if not all(math.isfinite(value) for value in values):
        return math.nan
    rounding = math.isclose(min(values), max(values))  # as between averages of columns
    return 0.0 if rounding else statistics.stdev(values)


def pairs(
    values: Mapping[tuple[str, str], Mapping[int, float]],
    row: str,
    baseline: str,
    trained_on: Mapping[str, str],
) -> list[tuple[int, float]]:
    """Return differences of a row from the baseline, for each column and seed of both: by seed.

    Columns that test the models of one training do not add pairs: their mean difference counts.

    Args:
        values: Row and column to seed to value.
        row: The row.
        baseline: The row that it is tested against.
        trained_on: Column to that of its training, itself where it is not only tested.
    """
    found: dict[tuple[str, int], list[float]] = {}
    for (name, column), cell in values.items():
        if name == row and column != AVERAGE and (theirs := values.get((baseline, column))):
            for seed, value in cell.items():
                if seed in theirs and math.isfinite(value - theirs[seed]):
                    pair = trained_on.get(column, column), seed
                    found.setdefault(pair, []).append(value - theirs[seed])
    return [(seed, statistics.fmean(differences)) for (_, seed), differences in found.items()]


def _significance(
    values: Mapping[tuple[str, str], Mapping[int, float]],
    row: str,
    baseline: str,
    trained_on: Mapping[str, str],
) -> PairedTest | None:
    found = pairs(values, row, baseline, trained_on)
    if row == baseline or len({seed for seed, _ in found}) < MIN_SEEDS:
        return None
    return sign_flip_test([difference for _, difference in found])


def mean_of_columns(results: Sequence[Result], values: Sequence[float | None]) -> float | None:
    """Compute the mean over seeds, then over columns, of which one may have more seeds.

    Args:
        results: Runs of a row.
        values: Value of each; those that are None are left out.

    Returns:
        The mean, or None if all are left out.
    """
    by_column: dict[str, list[float]] = {}
    for result, value in zip(results, values, strict=True):
        if value is not None:
            by_column.setdefault(result.column, []).append(value)
    return statistics.fmean(map(statistics.fmean, by_column.values())) if by_column else None


def _costs(results: Sequence[Result], also: Sequence[str]) -> dict[str, float]:
    tails = [name.partition("/")[2] for name in also]
    measured: dict[str, list[float | None]] = {
        tail if tails.count(tail) == 1 else name: [r.measures.get(name) for r in results]
        for name, tail in zip(also, tails, strict=True)
    }
    measured |= {
        "keys seen": [result.keys_seen for result in results],
        "parameters": [result.parameters for result in results],
        "seconds an epoch": [result.seconds_an_epoch for result in results],
        "peak MiB": [result.peak_mib for result in results],
        "epochs to converge": [result.epochs_to_converge for result in results],
    }
    costs = {}
    for name, values in measured.items():
        mean = mean_of_columns(results, values)
        if mean is not None:
            costs[name] = mean
    return costs


def _own_metric(results: Sequence[Result]) -> str:
    first = results[0].monitor
    test = first.replace("val/", "test/")
    return test if any(test in result.measures for result in results) else first


def _measures_same(metric: str, monitor: str) -> bool:
    return metric.partition("/")[2] == monitor.partition("/")[2]
