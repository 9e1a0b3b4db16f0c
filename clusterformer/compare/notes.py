"""Lines beside the table of a comparison, on the runs that are in it and those that are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusterformer.compare.configs import differences
from clusterformer.compare.planned_run import PlannedRun, name_cell
from clusterformer.compare.results import Result
from clusterformer.training.selection import name_stack, seen_by_stack

MAX_NAMED = 5
"""Most unfinished runs that a note names, and seeds in a list of runs."""

NO_OPTIONS = ("seed_everything", "runs", "wandb", "data.root")
"""Keys of a configuration that may differ between runs that are repetitions of one another."""

_START = "model.init_from"  # a first part of the same seed

_TEST_LIMIT = "trainer.limit_test_batches"


def of_repetition(results: Sequence[Result]) -> set[str]:
    """Find the keys that differ between repetitions: directories, and what follows the seed."""
    configs, seeds = [result.config for result in results], [result.seed for result in results]
    following = {key for key, values in differences(configs).items() if values == seeds}
    return {*NO_OPTIONS, _START, *following}


def missing_runs(unfinished: Sequence[PlannedRun]) -> list[str]:
    """Name the first planned runs that are not in the table, in one line."""
    if not unfinished:
        return []
    names = [planned.name for planned in unfinished[:MAX_NAMED]]
    more = len(unfinished) - len(names)
    names += [f"and {more} more"] if more else []
    return [f"not finished, and not in the table: {'; '.join(names)}"]


def mixed_columns(results: Sequence[Result]) -> list[str]:
    """Name the columns in which networks have other data, other forms or other shares of it."""
    notes = []
    networks = [result for result in results if not result.config.get("method")]
    for column in dict.fromkeys(result.column for result in networks):
        rows = {result.row: result for result in reversed(networks) if result.column == column}
        told = _told_differences(
            list(rows.values()), lambda key: key.startswith("data.") or key == _TEST_LIMIT
        )
        if told:
            where = f"{column}: its rows" if column else "the rows"
            notes.append(f"{where} differ in {told}; so they may not be comparable")
    return notes


def unlimited_methods(results: Sequence[Result]) -> list[str]:
    """Name the columns in which only networks have a part of the test examples."""
    limits: dict[str, dict[str, None]] = {}
    for result in results:
        limit = result.config.get(_TEST_LIMIT)
        if not result.config.get("method") and limits_test(limit):
            limits.setdefault(result.column, {})[str(limit)] = None
    columns = dict.fromkeys(result.column for result in results if result.config.get("method"))
    return [
        f"{f'{column}: ' if column else ''}simple methods are tested on all examples, networks on "
        f"those of {_TEST_LIMIT} ({', '.join(limits[column])})"
        for column in columns
        if column in limits
    ]


def limits_test(limit: object) -> bool:
    """Tell whether a value of `trainer.limit_test_batches` limits the test."""
    return isinstance(limit, int) or (isinstance(limit, float) and limit < 1)  # 1.0 is all


def mixed_cells(results: Sequence[Result]) -> list[str]:
    """Name the cells whose runs have different options, but for those that follow the seed."""
    notes = []
    for cell, found in _by_cell(results).items():
        told = _told_differences(found)
        if told:
            notes.append(f"{cell}: its runs differ in {told}")
    return notes


def twin_rows(results: Sequence[Result]) -> list[str]:
    """Name the networks of a column that have the same options, so are one model twice.

    It happens unseen: a mechanism keeps what a configuration gives to the one that it replaces.
    """
    models: dict[tuple[str, str], list[str]] = {}
    for cell, (first, *_) in _by_cell(results).items():
        if not first.config.get("method"):
            options = {key: value for key, value in first.config.items() if key not in NO_OPTIONS}
            models.setdefault((first.column, repr(sorted(options.items()))), []).append(cell)
    return [
        f"{' and '.join(cells)} have the same options, so they are one model"
        for cells in models.values()
        if len(cells) > 1
    ]


def unselected_cells(results: Sequence[Result]) -> list[str]:
    """Name the cells in which every token saw everything, under mechanisms that select keys."""
    notes = []
    for cell, found in _by_cell(results).items():
        stacks = set.intersection(*(set(result.selected_nothing) for result in found))
        if stacks and len(stacks) == len(seen_by_stack(found[0].measures)):
            told = "every token saw its whole text; at these lengths nothing was selected"
            notes.append(f"{cell}: {told}")
        elif stacks:
            told = f"every token of the {name_stack(*stacks)} saw its whole text; there nothing"
            notes.append(f"{cell}: {told} was selected")
    return notes


def absent_measures(results: Sequence[Result], names: Sequence[str]) -> list[str]:
    """Name the further measures that no run has, and those that runs have."""
    known = dict.fromkeys(name for result in results for name in result.measures)
    shown = ", ".join(name for name in known if "layer" not in name)
    return [f"also: no run has {name!r}; there is {shown}" for name in names if name not in known]


def _told_differences(
    results: Sequence[Result], wanted: Callable[[str], bool] = lambda key: True
) -> str:
    """Write the wanted options that differ, with their values, but for those that follow the seed.

    Returns:
        "" if there are none.
    """
    skipped = of_repetition(results)
    return ", ".join(
        f"{key} ({', '.join(dict.fromkeys(map(str, values)))})"
        for key, values in differences([result.config for result in results]).items()
        if wanted(key) and key not in skipped
    )


def _by_cell(results: Sequence[Result]) -> dict[str, list[Result]]:
    cells: dict[str, list[Result]] = {}
    for result in results:
        cells.setdefault(name_cell(result.row, result.column), []).append(result)
    return cells
