"""Training of the planned runs: each once, several at a time, resumed after any interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from filelock import FileLock, Timeout

from clusterformer.compare.child import describe_parent
from clusterformer.compare.jobs import Job
from clusterformer.compare.planned_run import PlannedRun
from clusterformer.compare.remaining import count_work, estimate
from clusterformer.errors import InputError
from clusterformer.wording import duration


class Failure(NamedTuple):
    """A run that failed, and the last line of its log."""

    planned: PlannedRun
    message: str


def explain(failures: Sequence[Failure]) -> str:
    """Name each reason once, after the runs that it stopped."""
    runs: dict[str, list[str]] = {}
    for planned, message in failures:
        runs.setdefault(message, []).append(planned.name)
    return "; ".join(f"{', '.join(names)}: {message}" for message, names in runs.items())


class _Process(NamedTuple):
    """A training process, and its log and start, in seconds."""

    job: Job
    handle: subprocess.Popen[bytes]
    log: IO[bytes]
    begun: float

    def stop(self) -> None:
        """Interrupt the training: it saves a checkpoint and ends."""
        if self.handle.poll() is None:
            os.kill(self.handle.pid, signal.SIGINT)

    def reason(self) -> str:
        """Say why it failed: the signal that ended it, or the last line of its log."""
        code = self.handle.returncode or 0
        if code >= 0:
            return self.job.last_message()
        by = ", by hand or by the system, which does so when memory runs out" if code == -9 else ""
        return f"killed by signal {-code}{by}; the same command resumes it"

    def close(self) -> None:
        self.handle.wait()
        self.log.close()
        self.job.lock.release()


def select_shard(jobs: Sequence[Job], shard: str | None) -> list[Job]:
    """Select every N-th job from the I-th on, for the shard "I/N"; all for None.

    Raises:
        InputError: if it is not I/N with I from 1 to N.
    """
    if shard is None:
        return list(jobs)
    index, slash, number = shard.partition("/")
    if not (slash and index.isdigit() and number.isdigit() and 1 <= int(index) <= int(number)):
        raise InputError(f"--shard is I/N with I from 1 to N, got {shard}")
    return split_into_shards(jobs, int(number))[int(index) - 1]


def split_into_shards(jobs: Sequence[Job], number: int) -> list[list[Job]]:
    """Deal out the jobs, one by one; those that need one run stay together, behind it."""
    together: dict[Path, list[Job]] = {}
    for job in jobs:
        root = job
        while root.before:
            root = root.before
        together.setdefault(root.folder, []).append(job)
    groups = list(together.values())
    return [[job for group in groups[i::number] for job in group] for i in range(number)]


@contextmanager
def lock_comparison(folder: Path, shard: str | None) -> Iterator[None]:
    """Keep a second `compare` from training the same comparison, or the same shard of it.

    The lock of a process that dies opens by itself.

    Raises:
        InputError: if another process trains it.
    """
    part = f"-{shard.replace('/', '-of-')}" if shard else ""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        held = FileLock(folder / f".compare{part}.lock", timeout=0).acquire()
    except Timeout:
        raise InputError(
            f"{folder}: another compare is training it; wait for it, or choose another --out"
        ) from None
    with held:
        yield


@contextmanager
def lock_page(folder: Path) -> Iterator[None]:
    """Let the shards of a comparison read its runs and write its table and page one by one.

    So the last of them writes all runs, also where two end at once.
    """
    with FileLock(folder / ".page.lock"):
        yield


def train_jobs(
    jobs: Sequence[Job],
    *,
    num_parallel: int,
    wandb: bool,
    group: str,
    report: Callable[[str], None],
) -> list[Failure]:
    """Train unfinished jobs in processes of their own.

    A job that another process holds is left to it. One that needs another run, such as a first
    part, waits for it, and fails if that has failed. However this process ends, its children end
    as well; each training resumes from its last checkpoint the next time.

    Args:
        jobs: The runs.
        num_parallel: Number of runs at a time.
        wandb: Whether to log each run to Weights & Biases.
        group: Group of the runs at W&B.
        report: Function that gets a line at the start, and one for each run that ends.

    Returns:
        The runs that failed.
    """
    waiting = [job for job in jobs if not job.finished]
    running: list[_Process] = []
    failures: list[Failure] = []
    taken: list[tuple[Job, float]] = []
    total = len(waiting)
    environment = _environment(num_parallel, group)
    if waiting:  # a run may take hours
        report(f"{count_work(waiting)}; the output of the first: {waiting[0].log}")
    try:
        while waiting or running:
            while len(running) < num_parallel and (job := _next_job(waiting, running)):
                waiting.remove(job)
                if job.before and not job.before.finished:
                    does = "tests" if job.planned.trained else "goes on from"
                    reason = f"{does} {job.before.planned.name}, which is not finished"
                    failures.append(Failure(job.planned, reason))
                    report(f"{job.planned.name}: FAILED: {reason}")
                    total -= 1
                elif process := _start(job, wandb, environment, report):
                    running.append(process)
                else:
                    total -= 1
            time.sleep(0.1)
            for process in [process for process in running if process.handle.poll() is not None]:
                running.remove(process)
                process.close()
                job = process.job
                taken.append((job, time.monotonic() - process.begun))
                if process.handle.returncode or not job.finished:
                    reason = process.reason()
                    failures.append(Failure(job.planned, reason))
                    outcome = f"FAILED: {reason} (see {job.log})"
                else:
                    outcome = _outcome(job)
                seconds = estimate([*waiting, *(other.job for other in running)], taken)
                rest = f", about {duration(seconds / num_parallel)} to go" if seconds else ""
                report(f"[{len(taken)}/{total}] {job.planned.name}: {outcome}{rest}")
    finally:
        for process in running:
            process.stop()
        for process in running:
            process.close()
    return failures


def _next_job(waiting: Sequence[Job], running: Sequence[_Process]) -> Job | None:
    """Choose the first job that needs no run which is still to come; None if all must wait."""
    ahead = {job.folder for job in waiting} | {process.job.folder for process in running}
    return next((job for job in waiting if not job.before or job.before.folder not in ahead), None)


def _start(
    job: Job, wandb: bool, environment: Mapping[str, str], report: Callable[[str], None]
) -> _Process | None:
    """Start the training of a job, unless another process trains it or has finished it."""
    try:
        job.lock.acquire()
    except Timeout:
        report(f"{job.planned.name}: another compare trains it")
        return None
    if job.finished:  # by another process, in the meantime
        job.lock.release()
        return None
    if damage := job.damage:
        report(f"{job.planned.name}: {damage}; trained anew, set aside: {job.set_aside()}")
    log: IO[bytes] = job.log.open("ab")
    handle = subprocess.Popen(
        job.command(wandb),
        stdout=log,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env={**environment, "WANDB_NAME": job.planned.name, **describe_parent(job.folder)},
        start_new_session=True,  # Ctrl-C reaches it through `stop` alone, and once
    )
    return _Process(job, handle, log, time.monotonic())


def _outcome(job: Job) -> str:
    results = job.outcome or {}
    measures = results["results"]
    names = (results["monitor"].replace("val/", "test/"), results["monitor"], *measures)
    measure = next((name for name in names if name in measures), None)
    shown = f"{measure} {measures[measure]:.4f} " if measure else ""
    return f"{shown}({duration(results['seconds'])})"


def _environment(num_parallel: int, group: str) -> Mapping[str, str]:
    environment = {**os.environ, "WANDB_RUN_GROUP": group}
    if num_parallel > 1:  # else each process would use all cores
        threads = max(1, (os.cpu_count() or 1) // num_parallel)
        environment.setdefault("OMP_NUM_THREADS", str(threads))
    return environment
