"""Choice by validation among the runs of a row and column, such as its learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from clusterformer.compare.planned_run import PlannedRun, name_cell
from clusterformer.compare.results import Result

Scores = Mapping[int, tuple[float, Result]]
"""Seed to the validation measure, higher is better, and the result."""


class Choice(NamedTuple):
    """Choice of validation for one row and column.

    Attributes:
        row, column: The cell of the table.
        chosen: Values that were chosen, such as "lr=0.01".
        scores: Each choice to its mean in validation; NaN where no run has finished.
        measure: The validation measure.
    """

    row: str
    column: str
    chosen: str
    scores: Mapping[str, float]
    measure: str

    @property
    def missing(self) -> list[str]:
        """Choices without a finished run."""
        return [choice for choice, score in self.scores.items() if math.isnan(score)]

    @property
    def cell(self) -> str:
        """Name of the row and column."""
        return name_cell(self.row, self.column)


def choose_by_validation(
    found: Sequence[tuple[PlannedRun, Result | None]],
) -> tuple[list[Result], list[Choice]]:
    """Keep, for each row and column, the runs of the choice that was best in validation.

    The measure is the one that chose the checkpoint, its mean over the seeds that all choices have
    finished. The test has no part in it.

    Args:
        found: Planned runs in order, each with its result if it has finished.

    Returns:
        The results that are kept, in order, and the choice of each row and column that has one.
    """
    cells: dict[tuple[str, str], dict[str, dict[int, tuple[float, Result]]]] = {}
    for planned, result in found:
        choices = cells.setdefault((planned.row, planned.column), {})
        scores = choices.setdefault(planned.choice, {})
        if result is not None:
            scores[planned.seed] = _validation(result), result
    kept: list[Result] = []
    made = []
    for (row, column), choices in cells.items():
        finished = [scores for scores in choices.values() if scores]
        if not finished:
            continue
        means = {name: _mean(its, finished) for name, its in choices.items()}
        chosen = max(choices, key=lambda name: (bool(choices[name]), means[name]))
        results = [result for _, result in choices[chosen].values()]
        kept += results
        if len(choices) > 1:
            sign = 1 if results[0].mode == "max" else -1
            shown = {name: sign * mean for name, mean in means.items()}
            made.append(Choice(row, column, chosen, shown, results[0].monitor))
    order = {id(result): index for index, (_, result) in enumerate(found)}
    return sorted(kept, key=lambda result: order[id(result)]), made


def _mean(scores: Scores, all_scores: Sequence[Scores]) -> float:
    """Mean over the seeds of all choices; over its own where they share none; NaN without a run."""
    if not scores:
        return math.nan
    shared = set.intersection(*(set(each) for each in all_scores)) or set(scores)
    return fmean(scores[seed][0] for seed in shared)


def _validation(result: Result) -> float:
    value = result.measures.get(result.monitor, math.nan)
    if not math.isfinite(value):
        return -math.inf
    return value if result.mode == "max" else -value
