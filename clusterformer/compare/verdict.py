"""The comparison in a sentence: who is ahead, by how much, at what cost, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from clusterformer.compare.results import Result
from clusterformer.compare.significance import MIN_SEEDS, format_p
from clusterformer.compare.statistics import Summary, mean_of_columns
from clusterformer.compare.tables import format_number
from clusterformer.wording import counted

LEVEL = 0.05


def verdict(summary: Summary) -> str:
    """Say who is ahead of the baseline, or of whom it is ahead.

    The row with the best mean in the last column, the average where there are several, is compared
    with the baseline, or the baseline with the second: over the seeds that both have, as rows with
    other seeds (folds) may have had easier ones. Where the baseline has no mean in that column, it
    is compared with the second, untested.
    """
    column = summary.columns[-1]
    found = {row: summary.cells.get((row, column)) for row in summary.rows}
    means = {row: cell.mean for row, cell in found.items() if cell and math.isfinite(cell.mean)}
    if not means:
        return f"No row has a finite {summary.metric} in every column: there is no verdict."
    sign = 1 if summary.mode == "max" else -1
    first, *others = sorted(means, key=lambda row: -sign * means[row])
    if not others:
        return f"{first} has {summary.metric} {format_number(means[first])}. {_seen(summary)}"
    other = summary.baseline if summary.baseline in others else others[0]
    shared = _shared_runs(summary, first, other)
    if shared is None:
        return f"{first} and {other} have no seed in common: there is no verdict. {_seen(summary)}"
    means = {row: _mean(runs, list(map(summary.value, runs))) for row, runs in shared.items()}
    if not all(map(math.isfinite, means.values())):
        lacking = f"{first} or {other} has a run without a finite {summary.metric}"
        return f"{lacking}: there is no verdict. {_seen(summary)}"
    first, other = sorted(means, key=lambda row: -sign * means[row])
    level = math.isclose(means[first], means[other])  # means of other runs differ by rounding
    gap = abs(means[first] - means[other])
    on = " on average" if len(summary.columns) > 1 else ""
    if any(len(shared[row]) < _num_runs(summary, row) for row in (first, other)):
        on += f" over the {counted(len(shared[first]), 'run')} that both have"
    numbers = f"{format_number(means[first])} against {format_number(means[other])}"
    if level:
        ahead = f"{first} and {other} are level{on} in {summary.metric} ({numbers})."
    else:
        ahead = (
            f"{first} is ahead of {other}{on} by {format_number(gap)} in {summary.metric} "
            f"({numbers}){_cost(shared[first], shared[other])}."
        )
    sure = "" if level else f" {_significance(summary, first, other)}"
    return f"{ahead}{sure} {_seen(summary)}{_reached(summary, first, other)}"


def explain_test(summary: Summary) -> str:
    """Say what p is, and how small it can be."""
    tests = summary.significance.values()
    if not tests:
        return f"p: none, since a test needs {MIN_SEEDS} seeds."
    few = min(tests, key=lambda test: test.num_pairs)
    limit = f"is at least {few.min_p:.3f}" if few.min_p >= 0.001 else "can be below 0.001"
    return (
        f"p: two-sided p-value of the difference from {summary.baseline}, by the sign-flip test "
        f"over n pairs of one seed and data set; with n = {few.num_pairs} it {limit}."
    )


def _shared_runs(summary: Summary, *rows: str) -> dict[str, list[Result]] | None:
    """Find each row's runs whose column and seed all have; None if a column has none."""
    runs = {row: {(r.column, r.seed): r for r in summary.results if r.row == row} for row in rows}
    keys = [key for key in runs[rows[0]] if all(key in runs[row] for row in rows)]
    if {column for column, _ in keys} != set(summary.metrics):
        return None
    return {row: [runs[row][key] for key in keys] for row in rows}


def _num_runs(summary: Summary, row: str) -> int:
    return sum(result.row == row for result in summary.results)


def _mean(results: Sequence[Result], values: Sequence[float]) -> float:
    mean = mean_of_columns(results, values)
    assert mean is not None
    return mean


def _cost(first: Sequence[Result], other: Sequence[Result]) -> str:
    """Compare time and memory; a difference below 5 % is not worth a word."""
    ratios = {}
    for cost, word in (("seconds_an_epoch", "time an epoch"), ("peak_mib", "memory")):
        ours, theirs = (
            _mean(runs, [getattr(run, cost) for run in runs]) for runs in (first, other)
        )
        if ours > 0 and theirs > 0:
            ratios[word] = ours / theirs
    said = [
        f"{'the same' if abs(ratio - 1) < 0.05 else f'{ratio:.2f} times the'} {word}"
        for word, ratio in ratios.items()
    ]
    return f", for {' and '.join(said)}" if said else ""


def _significance(summary: Summary, first: str, other: str) -> str:
    """Judge the difference, with p times the number of rows tested, since the best was picked."""
    if summary.baseline not in (first, other):
        return f"Whether that is chance is not tested: rows are tested against {summary.baseline}."
    tested = other if first == summary.baseline else first
    test, number = summary.significance.get(tested), len(summary.significance)
    if test is None:
        return f"Whether that is chance is not tested: fewer than {MIN_SEEDS} seeds."
    p, least = min(1.0, number * test.p), min(1.0, number * test.min_p)
    told = f"p {format_p(p)}" if p < 0.001 else f"p = {format_p(p)}"
    told += f" by Bonferroni over {number} rows" if number > 1 else ""
    if p < LEVEL:
        return f"The difference is significant ({told}, {test.num_pairs} pairs)."
    if least >= LEVEL:
        return (
            f"Significance cannot be shown with {test.num_pairs} pairs ({told}, "
            f"the smallest possible p is {least:.3f})."
        )
    return f"The difference is not significant ({told}, {test.num_pairs} pairs)."


def _seen(summary: Summary) -> str:
    """Count what the verdict rests on."""
    seeds = len({result.seed for result in summary.results})
    columns = len({column for _, column, _ in (result.training for result in summary.results)})
    parts = [counted(summary.num_runs, "run"), counted(seeds, "seed")]
    if columns > 1:
        parts.append(counted(columns, "data set"))
    epochs = sorted({result.epochs for result in summary.results})
    span = "" if epochs[0] == epochs[-1] else f"{epochs[0]} to "
    parts.append(f"{span}{counted(epochs[-1], 'epoch')} each")
    return f"Seen: {', '.join(parts)}."


def _reached(summary: Summary, *rows: str) -> str:
    """Say what share of tokens saw their partner, on the task that measures it."""
    measure, shares = "test/reach", {}
    for row in rows:
        of_row = [result.measures for result in summary.results if result.row == row]
        if any(measure not in measures for measures in of_row):
            return ""
        shares[row] = fmean(measures[measure] for measures in of_row)
    told = "; ".join(f"{row}: {format_number(share)}" for row, share in shares.items())
    return f" Share of tokens that see their partner: {told}."
