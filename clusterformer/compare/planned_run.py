"""One run of a comparison: its options, its arguments of `fit`, and the name of its directory."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterformer.training.config_files import to_argument

FitOptions = dict[str, Any]
"""Dotted keys of `fit` to values; `config` names one configuration or several."""

MAX_SLUG = 100


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison: a training, or a test of a trained model with other options.

    Attributes:
        row: Name of the model, such as a mechanism.
        column: Name of the data set; "" if there is only one column.
        seed: Seed of the run.
        options: Dotted keys of `fit`, without configurations; of a test, those of `test`.
        configs: Configurations, each overlaying those before it.
        choice: Values among which validation chooses, such as "lr=0.01"; "" if there is no choice.
        after: First part, whose weights it goes on from; None if it starts from nothing.
        trained: The run whose model it tests, without training it; None for a training.
    """

    row: str
    column: str
    seed: int
    options: FitOptions
    configs: tuple[str, ...]
    choice: str = ""
    after: PlannedRun | None = None
    trained: PlannedRun | None = None

    @property
    def subfolder(self) -> Path:
        """Directory of the run, below that of the comparison."""
        return Path(slug(self._row)) / slug(self.column or "all") / f"seed-{self.seed}"

    @property
    def name(self) -> str:
        """Row, column and seed, for people."""
        return f"{name_cell(self._row, self.column)}, seed {self.seed}"

    @property
    def before(self) -> PlannedRun | None:
        """The run that it needs, and that must be finished before; None if there is none."""
        return self.trained or self.after

    @property
    def _row(self) -> str:
        return f"{self.row}, {self.choice}" if self.choice else self.row

    def arguments(self) -> list[str]:
        """Return the arguments of `clusterformer fit`, or of `test` without `--checkpoint`."""
        configs = [word for config in self.configs for word in ("--config", config)]
        values = [f"--{key}={_as_argument(value)}" for key, value in self.options.items()]
        seed = [] if self.trained else [f"--seed_everything={self.seed}"]
        return in_order([*configs, *values, *seed])

    def arguments_of_model(self) -> list[str]:
        """Return the arguments of `fit` that make its model, and the data that it runs on."""
        own = self.arguments()
        return in_order([*self.trained.arguments(), *own]) if self.trained else own


def with_runs_before(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """List runs with those that they need, each of these once and before all that need it."""
    found: list[PlannedRun] = []
    added: dict[Path, PlannedRun] = {}

    def add(run: PlannedRun) -> None:
        if run.before:
            add(run.before)
        if added.get(run.subfolder) != run:  # another run of that directory is refused later
            added[run.subfolder] = run
            found.append(run)

    for run in runs:
        add(run)
    return found


def name_cell(row: str, column: str) -> str:
    """Name a row in a column, for people."""
    return f"{row} on {column}" if column else row


def in_order(arguments: Sequence[str]) -> list[str]:
    """Put configurations first, as they overlay one another, then options by name.

    So a class, such as --model.attention, stands before its own options.
    """
    options = [word for word in arguments if word.startswith("--") and "=" in word]
    configs = [word for word in arguments if word not in options]
    return [*configs, *sorted(options, key=lambda word: word.partition("=")[0])]


def slug(name: str) -> str:
    """Turn a name into the name of a directory: never hidden, empty, ".." or too long."""
    safe = re.sub(r"[^A-Za-z0-9.=_-]+", "-", name).strip("-.") or "run"
    if len(safe) <= MAX_SLUG:
        return safe
    return f"{safe[:MAX_SLUG]}-{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"


def _as_argument(value: Any) -> str:
    return value if isinstance(value, str) else to_argument(value)
