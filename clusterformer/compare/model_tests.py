"""Tests of trained models with other options, such as on longer texts, as runs of a comparison."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from clusterformer.compare.jobs import Job
from clusterformer.compare.planned_run import PlannedRun
from clusterformer.compare.results import Result
from clusterformer.errors import InputError, reading
from clusterformer.structure import require_structure
from clusterformer.training.trusted import Named


class Measured(TypedDict):
    """What `clusterformer test` writes with `--out`, and logs with `--wandb`."""

    results: dict[str, float]
    seconds: float
    environment: dict[str, Any]


def check_measured(measured: Any, source: str | Path) -> Measured:
    """Return what a test wrote.

    Raises:
        InputError: if it is nothing that a test writes; with the source, and what does not fit.
    """
    require_structure(measured, Measured, f"{source}: refused, measures")
    found: Measured = measured
    return found


def result_of_test(
    trained: Result, measured: Measured, *, column: str, config: Mapping[str, Any]
) -> Result:
    """Make the result of a test from that of the training.

    Args:
        trained: Result of the run that trained the model.
        measured: What the test wrote.
        column: Column of the test.
        config: Dotted keys of its whole configuration.
    """
    return replace(
        trained,
        column=column,
        trained_on=trained.column,
        measures=_measures(trained.measures, measured),
        curve=(),
        config=config,
        environment=measured["environment"],
    )


def _measures(trained: Mapping[str, float], measured: Measured) -> dict[str, float]:
    """Put the measures of a test in place of those that the training ended with."""
    kept = {name: value for name, value in trained.items() if not name.startswith("test/")}
    return kept | measured["results"]


class ModelTest(Job):
    """A test of the model that another job trains; its measures are in a file of its own.

    Args:
        folder: Directory of the comparison.
        planned: The test.
        trained: The run whose model it tests.
    """

    def __init__(self, folder: Path, planned: PlannedRun, trained: PlannedRun) -> None:
        super().__init__(folder, planned)
        self.trained = Job(folder, trained)
        self.file = self.folder / "test.json"

    @property
    def outcome(self) -> Mapping[str, Any] | None:
        """Outcome of the training, with the measures of this test in place of those of its own."""
        outcome, measured = self.trained.outcome, self._read()
        if outcome is None or measured is None:
            return None
        results = _measures(outcome["results"], measured)
        return {**outcome, "results": results, "seconds": measured["seconds"]}

    @property
    def damage(self) -> str | None:
        """None: a damaged file of measures counts as none, and the test is made again."""
        return None

    @property
    def result(self) -> Result | None:
        """The result of the training, with the measures, options and origin of the test."""
        trained, measured = self.trained.result, self._read()
        if trained is None or measured is None:
            return None
        config = {**trained.config, **self.planned.options}
        made = result_of_test(trained, measured, column=self.planned.column, config=config)
        return replace(made, folder=str(self.folder))

    def set_aside(self) -> None:
        """Remove the measures, so that the test is made again."""
        self.file.unlink(missing_ok=True)

    def command(self, wandb: bool) -> list[str]:
        """Return the command line that tests the model."""
        run = self.trained.run
        words = ["--checkpoint", str(run.folder if run else self.trained.folder)]
        words += [*self.planned.arguments(), "--out", str(self.file)]
        words += ["--wandb"] if wandb else []
        classes = Named.by(self.trained.planned.arguments(), None).classes
        words += ["--trust", ",".join(classes)] if classes else []
        return [sys.executable, "-m", "clusterformer", "test", *words]

    def _read(self) -> Measured | None:
        """Read the measures; None if there are none, or they are older than the model."""
        run = self.trained.run
        if run is None or not self.file.exists():
            return None
        if self.file.stat().st_mtime < (run.folder / "results.json").stat().st_mtime:
            return None
        try:
            with reading(self.file, "the measures of a test"):
                return check_measured(json.loads(self.file.read_text("utf-8")), self.file)
        except InputError:
            return None


def make_jobs(folder: Path, runs: Sequence[PlannedRun]) -> list[Job]:
    """Make the job of each planned run, in the directory of a comparison."""
    return [
        ModelTest(folder, run, run.trained) if run.trained else Job(folder, run) for run in runs
    ]
