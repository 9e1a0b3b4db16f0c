"""Training the runs of a plan: each once, several at a time, whatever stops in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

import clusterformer
from clusterformer.compare.plan import PlannedRun
from clusterformer.errors import InputError
from clusterformer.training.runs import Run

Say = Callable[[str], None]


class Place:
    """Where one planned run lives: its record, log, lock and, once begun, its run folder.

    Args:
        folder: Of the comparison.
        planned: The run.
    """

    def __init__(self, folder: Path, planned: PlannedRun) -> None:
        self.planned = planned
        self.folder = folder / planned.place
        self.log = self.folder / "log.txt"
        self.lock = FileLock(self.folder / "lock", timeout=0)

    @property
    def run(self) -> Run | None:
        """The run folder, if training has begun."""
        found = sorted(self.folder.glob("*/*/config.yaml"))
        return Run(found[-1].parent) if found else None

    @property
    def finished(self) -> bool:
        """Whether training has come to its results."""
        return bool(self.run and self.run.results)

    def record(self) -> None:
        """Write down what the run is, or refuse a folder that holds another.

        Raises:
            InputError: if the folder's run has other options, or is of another version.
        """
        ours = {"version": clusterformer.__version__, "arguments": self.planned.arguments()}
        path = self.folder / "planned.json"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(ours, indent=2) + "\n", encoding="utf-8")
            partial.replace(path)
            return
        theirs = json.loads(path.read_text(encoding="utf-8"))
        for what in ("version", "arguments"):
            if theirs[what] != ours[what]:
                apart = _difference(theirs[what], ours[what])
                raise InputError(
                    f"{self.folder}: holds a run of other {what}, {apart}; choose another --out"
                )

    def command(self, wandb: bool) -> list[str]:
        """The command line that begins the run or goes on with it."""
        fit = [sys.executable, "-m", "clusterformer", "fit"]
        if self.run:
            return [*fit, "--resume", str(self.run.folder)]
        flags = ["--wandb"] if wandb else []
        return [*fit, *self.planned.arguments(), *flags, "--runs", str(self.folder)]

    def complaint(self) -> str:
        """The last line of the log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        spoken = [line.strip() for line in lines if line.strip()]
        return spoken[-1].removeprefix("clusterformer: error: ") if spoken else "no output"


def train(
    places: list[Place], *, jobs: int, wandb: bool, group: str, say: Say
) -> list[tuple[PlannedRun, str]]:
    """Train what is not finished, `jobs` at a time.

    A run that another process holds is left to it. Ctrl-C stops all; each goes on from its last
    checkpoint the next time.

    Returns:
        The runs that failed, and what each said last.
    """
    waiting = [place for place in places if not place.finished]
    total, done = len(waiting), 0
    running: dict[subprocess.Popen[bytes], tuple[Place, IO[bytes], float]] = {}
    failed: list[tuple[PlannedRun, str]] = []
    taken: list[float] = []
    environment = _environment(jobs, group)
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                place = waiting.pop(0)
                try:
                    place.lock.acquire()
                except Timeout:
                    total -= 1
                    say(f"{place.planned.name}: another process is at it")
                    continue
                if place.finished:  # by another process, since we looked
                    place.lock.release()
                    total -= 1
                    continue
                log: IO[bytes] = place.log.open("ab")
                process = subprocess.Popen(
                    place.command(wandb),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env=environment,
                )
                running[process] = place, log, time.monotonic()
            time.sleep(0.1)
            for process in [process for process in running if process.poll() is not None]:
                place, log, begun = running.pop(process)
                log.close()
                place.lock.release()
                done += 1
                taken.append(time.monotonic() - begun)
                if process.returncode or not place.finished:
                    failed.append((place.planned, place.complaint()))
                    outcome = f"FAILED: {place.complaint()} (see {place.log})"
                else:
                    outcome = _told(place)
                left = sum(taken) / len(taken) * (total - done) / jobs
                rest = f", about {_duration(left)} to go" if total > done else ""
                say(f"[{done}/{total}] {place.planned.name}: {outcome}{rest}")
    finally:
        for process, (place, log, _) in running.items():
            process.wait()  # Ctrl-C reached it as well; it saves and leaves
            log.close()
            place.lock.release()
    return failed


def _told(place: Place) -> str:
    results = (place.run and place.run.results) or {}
    measure = results["monitor"].replace("val/", "test/")
    value = results["results"].get(
        measure, results["results"].get(results["monitor"], float("nan"))
    )
    return f"{measure} {value:.4f} ({_duration(results['seconds'])})"


def _environment(jobs: int, group: str) -> Mapping[str, str]:
    environment = {**os.environ, "WANDB_RUN_GROUP": group}
    if jobs > 1:  # or all would use all cores
        threads = max(1, (os.cpu_count() or 1) // jobs)
        environment.setdefault("OMP_NUM_THREADS", str(threads))
    return environment


def _difference(theirs: Any, ours: Any) -> str:
    if isinstance(theirs, str):
        return f"{theirs} instead of {ours}"
    only = [word for word in theirs if word not in ours] or ["fewer options"]
    now = [word for word in ours if word not in theirs] or ["fewer options"]
    return f"{' '.join(only)} instead of {' '.join(now)}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
