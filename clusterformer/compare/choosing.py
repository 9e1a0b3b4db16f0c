"""Choice by validation among the runs of a row and column, such as its learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from clusterformer.compare.planned_run import PlannedRun
from clusterformer.compare.results import Result

Scores = Mapping[int, tuple[float, Result]]
"""Seed to the validation measure, higher is better, and the result."""


def choose_by_validation(
    found: Sequence[tuple[PlannedRun, Result | None]],
) -> tuple[list[Result], list[str]]:
    """Keep, for each row and column, the runs of the choice that was best in validation.

    The measure is the one that chose the checkpoint, its mean over the seeds that all choices have
    finished. The test has no part in it.

    Args:
        found: Planned runs in order, each with its result if it has finished.

    Returns:
        The results that are kept, in order, and a line for each row and column in which a choice
        has no finished run yet, so that the others were chosen from without it.
    """
    cells: dict[tuple[str, str], dict[str, dict[int, tuple[float, Result]]]] = {}
    for planned, result in found:
        choices = cells.setdefault((planned.row, planned.column), {})
        scores = choices.setdefault(planned.choice, {})
        if result is not None:
            scores[planned.seed] = _validation(result), result
    kept: list[Result] = []
    notes = []
    for (row, column), choices in cells.items():
        finished = {choice: scores for choice, scores in choices.items() if scores}
        if not finished:
            continue
        best = max(finished.values(), key=lambda scores: _mean(scores, list(finished.values())))
        kept += [result for _, result in best.values()]
        missing = [choice for choice in choices if choice not in finished]
        if missing:
            where = f"{row} on {column}" if column else row
            notes.append(f"{where}: chosen without {', '.join(missing)}, which has no finished run")
    order = {id(result): index for index, (_, result) in enumerate(found)}
    return sorted(kept, key=lambda result: order[id(result)]), notes


def _mean(scores: Scores, all_scores: Sequence[Scores]) -> float:
    """Mean over the seeds of all choices; over its own where they share none."""
    shared = set.intersection(*(set(each) for each in all_scores)) or set(scores)
    return fmean(scores[seed][0] for seed in shared)


def _validation(result: Result) -> float:
    value = result.measures.get(result.monitor, math.nan)
    if not math.isfinite(value):
        return -math.inf
    return value if result.mode == "max" else -value
