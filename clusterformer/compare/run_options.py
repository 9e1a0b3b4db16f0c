"""The options of each run of a comparison, from those of its row, its column and their cell."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from clusterformer.compare.planned_run import FitOptions, PlannedRun


@dataclass(frozen=True)
class RunOptions:
    """What the file of a comparison says of its runs.

    Attributes:
        shared: Options of all runs.
        rows: Row to its name in the file, without the values of the grid, and its options.
        columns: Column or first part to its options.
        cells: (column or first part, row in the file) to further options of that row in it.
        choices: Choice to the options among which validation chooses.
        seeded: Dotted keys that get the seed too.
        after: Column to the first part that its runs go on from.
        trained_on: Column to the column or first part whose models it only tests.
    """

    shared: FitOptions
    rows: Mapping[str, tuple[str, FitOptions]]
    columns: Mapping[str, FitOptions]
    cells: Mapping[tuple[str, str], FitOptions]
    choices: Mapping[str, FitOptions]
    seeded: Sequence[str]
    after: Mapping[str, str]
    trained_on: Mapping[str, str]
    _begun: dict[tuple[str, ...], PlannedRun] = field(default_factory=dict)

    def rows_of(self, column: str, stands_in: Mapping[str, Collection[str]]) -> list[str]:
        """List the rows that have a run in a column.

        Args:
            column: The column.
            stands_in: Row in the file to the columns that it names.
        """
        return [
            row
            for row, (base, options) in self.rows.items()
            if column in stands_in[base]
            and not (column in self.trained_on and options.get("method"))  # it has no model
        ]

    def choices_of(self, row: str) -> list[str]:
        """List the choices of a row; one without a name where validation has none."""
        return [""] if self.rows[row][1].get("method") else list(self.choices)

    def plan(self, row: str, column: str, seed: int, choice: str) -> PlannedRun:
        """Plan a run, with the runs that it goes on from or whose model it tests.

        First parts that have the same options are one run.
        """
        base, options = self.rows[row]
        data, cell = self.columns[column], self.cells.get((column, base), {})
        if column in self.trained_on:
            trained = self.plan(row, self.trained_on[column], seed, choice)
            return PlannedRun(row, column, seed, {**data, **cell}, (), choice, trained=trained)
        chosen = self.choices[choice] if choice else {}
        own = {**cell, **chosen, **dict.fromkeys(self.seeded, seed)}
        # what a model overlays goes over its data's configuration, and what is chosen over both
        configs = [name for layer in (self.shared, data, options, own) for name in _named(layer)]
        given: FitOptions = {}
        for layer in (self.shared, options, data, own):
            given |= {key: layer[key] for key in layer if key not in ("config", "columns")}
        run = PlannedRun(row, column, seed, given, tuple(configs), choice)
        if column not in self.after or options.get("method"):
            return run
        start = self.plan(row, self.after[column], seed, choice)
        start = self._begun.setdefault(tuple(start.arguments()), start)
        fresh = {key: value for key, value in given.items() if key != "model.init_from"}
        return replace(run, options=fresh, after=start)


def _named(options: FitOptions) -> list[str]:
    named = options.get("config", [])
    return [named] if isinstance(named, str) else named
