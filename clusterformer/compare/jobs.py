"""The planned runs on the disk: their directories, records and states."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

import clusterformer
from clusterformer.compare.configs import flatten
from clusterformer.compare.planned_run import FitOptions, PlannedRun, in_order
from clusterformer.compare.results import (
    Result,
    read_config,
    read_environment,
    read_outcome,
    read_result,
)
from clusterformer.data.file_digests import edited, file_digests
from clusterformer.errors import InputError
from clusterformer.training.config_files import find, read_yaml
from clusterformer.training.environment import describe_environment
from clusterformer.training.runs import Run
from clusterformer.whole_files import write_text

RECORD = "planned.json"
"""File of a run's options, in the directory that holds its run directory."""


class Job:
    """One planned training on the disk: its record, log, lock and, once begun, its run directory.

    Args:
        folder: Directory of the comparison.
        planned: The run.
    """

    def __init__(self, folder: Path, planned: PlannedRun) -> None:
        self.planned = planned
        self.before = Job(folder, planned.before) if planned.before else None
        self.folder = folder / planned.subfolder
        self.log = self.folder / "log.txt"
        self.lock = FileLock(self.folder / "lock", timeout=0)

    @property
    def run(self) -> Run | None:
        """The latest run directory, if training has begun."""
        return find_run(self.folder)

    @property
    def outcome(self) -> Mapping[str, Any] | None:
        """Outcome that training wrote when it ended; None if it has not, or files are damaged."""
        run = self.run
        return None if run is None or self.damage else read_outcome(run)

    @property
    def finished(self) -> bool:
        """True if training has written its results."""
        return self.outcome is not None

    @property
    def damage(self) -> str | None:
        """The damaged file for which the run is of no use; None if there is none."""
        try:
            if run := self.run:
                read_config(run)
                if read_outcome(run) is None:
                    read_environment(run.folder / "environment.json")  # to resume it
        except InputError as error:
            return str(error)
        return None

    @property
    def result(self) -> Result | None:
        """The result, if training has finished."""
        run, planned = self.run, self.planned
        if run is None or not self.finished:
            return None
        return read_result(run, planned.row, planned.column, planned.seed)

    def set_aside(self) -> Path | None:
        """Rename the run directory, so that training begins anew; return the new path."""
        run = self.run
        if run is None:
            return None
        aside = run.folder.with_name(f"{run.folder.name}.damaged-{os.urandom(2).hex()}")
        return run.folder.rename(aside)

    def record(self) -> None:
        """Record the run's options, or refuse a directory that holds another run.

        Raises:
            InputError: as `refuse_other`.
        """
        self.refuse_other()
        path = self._record
        if _read_record(path) is not None:
            return
        if path.exists():  # nobody knows what the run is of
            self.set_aside()
        self.folder.mkdir(parents=True, exist_ok=True)
        record = {**self._description(), "environment": describe_environment()}
        write_text(path, json.dumps(record, indent=2) + "\n", shared=True)

    def refuse_other(self) -> None:
        """Refuse a directory that holds another run; write nothing.

        Raises:
            InputError: if the directory's run has other options, is of another version, or one of
                its configurations or data files has been edited since.
        """
        theirs = _read_record(self._record)
        if theirs is None:
            return
        ours = self._description()
        for key in ("version", "arguments", "after", "trained"):
            if theirs.get(key) != ours[key]:
                difference = _difference(theirs.get(key), ours[key])
                raise InputError(
                    f"{self.folder}: holds a run of other {key}, {difference}; choose another --out"
                )
        for kind in ("configs", "data"):
            if name := edited(theirs[kind], ours[kind]):
                raise InputError(
                    f"{self.folder}: holds a run of {name} as it was; it has been edited "
                    "since; choose another --out"
                )

    @property
    def options(self) -> dict[str, Any]:
        """Options of `fit` by their dotted keys: of the configurations, then of the plan."""
        return _merged([read_yaml(find(name)) for name in self.planned.configs], self.planned)

    @property
    def _record(self) -> Path:
        return self.folder / RECORD

    def _description(self) -> dict[str, Any]:
        configs = {name: read_yaml(find(name)) for name in self.planned.configs}
        return {
            "version": clusterformer.__version__,
            "arguments": self.planned.arguments(),
            "after": _subfolder(self.planned.after),
            "trained": _subfolder(self.planned.trained),
            "configs": {name: _digest(options) for name, options in configs.items()},
            "data": _data_digests(_merged(configs.values(), self.planned)),
        }

    def command(self, wandb: bool) -> list[str]:
        """Return the command line that begins or resumes the run."""
        fit = [sys.executable, "-m", "clusterformer", "fit", *self.planned.arguments()]
        fit += ["--baselines=false", *(["--wandb"] if wandb else [])]
        if self.run:  # its config.yaml may choose no class that the plan does not name
            return [*fit, "--resume", str(self.run.folder)]
        if self.before and self.before.run:
            fit += ["--model.init_from", str(self.before.run.folder)]
        return [*fit, "--runs", str(self.folder)]

    def last_message(self) -> str:
        """Return the last line of the log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        messages = [line.strip() for line in lines if line.strip()]
        if messages:
            return messages[-1].removeprefix("clusterformer: error: ")
        try:  # what keeps a log empty is mostly a full disk
            with self.log.open("a", encoding="utf-8") as file:
                file.write("no output\n")
        except OSError as error:
            return f"{self.log}: {error.strerror}"
        return "no output"


def find_run(folder: Path) -> Run | None:
    """Find the latest run directory of a job's directory; one that was set aside is none."""
    found = [path.parent for path in folder.glob("*/*/config.yaml")]
    numbered = [run for run in found if run.name.isdigit()]
    return Run(max(numbered, key=lambda run: int(run.name))) if numbered else None


def finished_runs(folder: Path) -> list[Run]:
    """List the finished runs of a comparison's directory, without first parts, ordered by row."""
    cells = sorted(folder.glob("*/*/seed-*"))
    records = [_read_record(cell / RECORD) for cell in cells]
    first = {str(record.get("after")) for record in records if record}
    runs = [find_run(cell) for cell in cells if str(cell.relative_to(folder)) not in first]
    return [run for run in runs if run and run.finished]


def _read_record(path: Path) -> Mapping[str, Any] | None:
    """Read planned.json, its arguments in order; None if it is missing or damaged."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("version"), str):
        return None
    words = record.get("arguments")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return None
    known = {kind: record.get(kind) for kind in ("configs", "data")}  # older records have none
    digests = {kind: found if isinstance(found, dict) else {} for kind, found in known.items()}
    return {**record, "arguments": in_order(words), **digests}


def _subfolder(planned: PlannedRun | None) -> str | None:
    return str(planned.subfolder) if planned else None


def _digest(config: Any) -> str:
    """Name the options of a configuration; comments and the order of keys do not count."""
    options = json.dumps(config, sort_keys=True, default=str)
    return hashlib.blake2b(options.encode(), digest_size=16).hexdigest()


def _merged(configs: Iterable[Any], planned: PlannedRun) -> FitOptions:
    """Merge the options of configurations and of a run, by dotted keys; the last one wins."""
    layers = [*map(flatten, configs), planned.options]
    return {key: value for layer in layers for key, value in layer.items()}


def _data_digests(options: FitOptions) -> dict[str, str]:
    """Name the content of each file that an option of the data names."""
    return file_digests([value for key, value in options.items() if key.startswith("data.")])


def _difference(theirs: Any, ours: Any) -> str:
    if not isinstance(theirs, list):
        return f"{theirs or 'none'} instead of {ours or 'none'}"
    only_theirs = [word for word in theirs if word not in ours] or ["fewer options"]
    only_ours = [word for word in ours if word not in theirs] or ["fewer options"]
    return f"{' '.join(only_theirs)} instead of {' '.join(only_ours)}"
