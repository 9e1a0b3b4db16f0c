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


class _Measured(TypedDict):
    """What `clusterformer test --out` writes."""

    results: dict[str, float]
    seconds: float
    environment: dict[str, Any]


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
        kept = {k: v for k, v in outcome["results"].items() if not k.startswith("test/")}
        results = kept | measured["results"]
        return {**outcome, "results": results, "seconds": measured["seconds"]}

    @property
    def damage(self) -> str | None:
        """None: a damaged file of measures counts as none, and the test is made again."""
        return None

    @property
    def result(self) -> Result | None:
        """The result of the training, with the measures, options and origin of the test."""
        result, outcome, measured = self.trained.result, self.outcome, self._read()
        if result is None or outcome is None or measured is None:
            return None
        return replace(
            result,
            column=self.planned.column,
            trained_on=result.column,
            measures=outcome["results"],
            curve=(),
            config={**result.config, **self.planned.options},
            environment=measured["environment"],
            folder=str(self.folder),
        )

    def set_aside(self) -> None:
        """Remove the measures, so that the test is made again."""
        self.file.unlink(missing_ok=True)

    def command(self, wandb: bool) -> list[str]:
        """Return the command line that tests the model."""
        run = self.trained.run
        words = ["--checkpoint", str(run.folder if run else self.trained.folder)]
        words += [*self.planned.arguments(), "--out", str(self.file)]
        classes = Named.by(self.trained.planned.arguments(), None).classes
        words += ["--trust", ",".join(classes)] if classes else []
        return [sys.executable, "-m", "clusterformer", "test", *words]

    def _read(self) -> _Measured | None:
        """Read the measures; None if there are none, or they are older than the model."""
        run = self.trained.run
        if run is None or not self.file.exists():
            return None
        if self.file.stat().st_mtime < (run.folder / "results.json").stat().st_mtime:
            return None
        try:
            with reading(self.file, "the measures of a test"):
                measured = json.loads(self.file.read_text(encoding="utf-8"))
                require_structure(measured, _Measured, f"{self.file}: refused, measures")
        except InputError:
            return None
        return measured


def make_jobs(folder: Path, runs: Sequence[PlannedRun]) -> list[Job]:
    """Make the job of each planned run, in the directory of a comparison."""
    return [
        ModelTest(folder, run, run.trained) if run.trained else Job(folder, run) for run in runs
    ]
