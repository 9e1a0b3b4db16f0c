"""What is left of a comparison: runs to train, tests of models, and about how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from clusterformer.compare.jobs import Job
from clusterformer.compare.plan_file import is_number
from clusterformer.wording import counted


def count_work(jobs: Sequence[Job]) -> str:
    """Say what is to do, as in "2 runs to train, and 4 further tests of models"."""
    tests = sum(map(_is_test, jobs))
    further = f"{counted(tests, 'further test')} of models"
    if tests and tests == len(jobs):
        return further
    runs = f"{counted(len(jobs) - tests, 'run')} to train"
    return f"{runs}, and {further}" if tests else runs


def seconds_left(jobs: Sequence[Job]) -> float | None:
    """Estimate the time of the unfinished jobs by that of the finished ones; None without any."""
    outcomes = [(job, job.outcome) for job in jobs]
    taken = [
        (job, outcome["seconds"])
        for job, outcome in outcomes
        if outcome and is_number(outcome.get("seconds"))
    ]
    return estimate([job for job, outcome in outcomes if not outcome], taken)


def estimate(jobs: Sequence[Job], taken: Sequence[tuple[Job, float]]) -> float | None:
    """Estimate the seconds of jobs by those of others: of trainings, and of tests, by their like.

    Args:
        jobs: Jobs to come.
        taken: Jobs that have ended, with their seconds.

    Returns:
        Seconds of the jobs one after the other, without those whose like has not ended; None if
        that is true of all.
    """
    means = {
        kind: fmean(of_kind)
        for kind in (False, True)
        if (of_kind := [seconds for job, seconds in taken if _is_test(job) == kind])
    }
    known = [means[_is_test(job)] for job in jobs if _is_test(job) in means]
    return sum(known) if known else None


def _is_test(job: Job) -> bool:
    return job.planned.trained is not None
