"""The comparison in a sentence: who is ahead, by how much, at what cost, and how sure that is."""

from __future__ import annotations

import math
from statistics import fmean

from clusterformer.compare.significance import MIN_SEEDS, format_p
from clusterformer.compare.statistics import Summary
from clusterformer.compare.tables import format_number

LEVEL = 0.05


def verdict(summary: Summary) -> str:
    """Say who is ahead of the baseline, or of whom it is ahead.

    Compared are the means of the last column, the average where there are several.
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
    gap = abs(means[first] - means[other])
    on = " on average" if len(summary.columns) > 1 else ""
    numbers = f"{format_number(means[first])} against {format_number(means[other])}"
    if gap == 0:
        ahead = f"{first} and {other} are level{on} in {summary.metric} ({numbers})."
    else:
        ahead = (
            f"{first} is ahead of {other}{on} by {_gap(gap)} in {summary.metric} "
            f"({numbers}){_cost(summary, first, other)}."
        )
    tested = other if first == summary.baseline else first
    sure = "" if gap == 0 else f" {_significance(summary, tested)}"
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


def _gap(gap: float) -> str:
    """Format a difference, which may be too small for three digits after the point."""
    return format_number(gap) if gap >= 0.001 else f"{gap:.1g}"


def _cost(summary: Summary, first: str, other: str) -> str:
    """Compare time and memory; a difference below 5 % is not worth a word."""
    ratios = {}
    for cost, word in (("seconds an epoch", "time an epoch"), ("peak MiB", "memory")):
        ours, theirs = summary.costs[first][cost], summary.costs[other][cost]
        if ours > 0 and theirs > 0:
            ratios[word] = ours / theirs
    said = [
        f"{'the same' if abs(ratio - 1) < 0.05 else f'{ratio:.2f} times the'} {word}"
        for word, ratio in ratios.items()
    ]
    return f", for {' and '.join(said)}" if said else ""


def _significance(summary: Summary, row: str) -> str:
    test = summary.significance.get(row)
    if test is None:
        return f"Whether that is chance is not tested: fewer than {MIN_SEEDS} seeds."
    told = f"p {format_p(test.p)}" if test.p < 0.001 else f"p = {format_p(test.p)}"
    if test.p < LEVEL:
        return f"The difference is significant ({told}, {test.num_pairs} pairs)."
    if test.min_p >= LEVEL:
        return (
            f"Significance cannot be shown with {test.num_pairs} pairs ({told}, "
            f"the smallest possible p is {test.min_p:.3f})."
        )
    return f"The difference is not significant ({told}, {test.num_pairs} pairs)."


def _seen(summary: Summary) -> str:
    """Count what the verdict rests on."""
    seeds = len({result.seed for result in summary.results})
    columns = len(set(summary.metrics))
    parts = [_count(len(summary.results), "run"), _count(seeds, "seed")]
    if columns > 1:
        parts.append(_count(columns, "data set"))
    epochs = sorted({result.epochs for result in summary.results})
    span = "" if epochs[0] == epochs[-1] else f"{epochs[0]} to "
    parts.append(f"{span}{_count(epochs[-1], 'epoch')} each")
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


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
