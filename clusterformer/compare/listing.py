"""A list of the runs of a comparison, with their states and sizes, before any is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from clusterformer.compare.jobs import Job
from clusterformer.compare.plan_file import is_number
from clusterformer.compare.planned_run import PlannedRun
from clusterformer.data.word_vectors import find_vectors
from clusterformer.errors import InputError, MissingDataError, making
from clusterformer.module import ClusterFormer
from clusterformer.task import Task
from clusterformer.tasks.labelling import Labelling

_OF_DATA = "data", "model.pretrained", "model.init_from"  # they bring their tokenizer

Maker = Callable[[list[str]], tuple[ClusterFormer, Task]]
"""Maker of the model and task that the options of `fit` describe."""


class ListedRun(NamedTuple):
    """One run.

    Attributes:
        name: Row, column and seed.
        state: "finished", "begun" or "to do".
        parameters: Number of weights that it trains; None where its data is not here, and of a
            simple method, which has no network.
    """

    name: str
    state: str
    parameters: int | None


def list_runs(jobs: Sequence[Job], make: Maker) -> Iterator[ListedRun]:
    """List each run with its state and, where the model can be built here, its size.

    Args:
        jobs: The runs.
        make: Maker of model and task; called once for each cell of the table, and choice in it.

    Raises:
        InputError: if a model cannot be built with its options.
    """
    sizes: dict[tuple[str, str, str], int | None] = {}
    ready: dict[str, Task | None] = {}
    for job in jobs:
        results = job.outcome
        state = "finished" if results else "begun" if job.run else "to do"
        cell = job.planned.row, job.planned.column, job.planned.choice
        if cell not in sizes:
            planned = job.planned
            if results:
                sizes[cell] = results["parameters"]
            elif "method" in planned.options:
                sizes[cell] = None
            else:
                model, task = make(planned.arguments())
                data = _describe_data(planned)
                if data not in ready:
                    ready[data] = _set_up(task)
                with making(planned.name):
                    sizes[cell] = _parameters(model, ready[data])
        yield ListedRun(job.planned.name, state, sizes[cell])


def absent_columns(jobs: Sequence[Job], make: Maker) -> dict[str, str]:
    """Find the columns whose data set is not on this machine, and the message that says so.

    Other mistakes are left for the runs to report. A column of which a run has begun is not absent.

    Args:
        jobs: The runs.
        make: Maker of model and task; called once for each column.
    """
    columns = dict.fromkeys(job.planned.column for job in jobs)
    absent: dict[str, str] = {}
    for column in columns:
        runs = [job for job in jobs if job.planned.column == column]
        if any(job.run or job.outcome for job in runs):
            continue
        try:
            _, task = make(runs[0].planned.arguments())
            if isinstance(task, Labelling):
                task.read("train")
            else:
                task.prepare_data()
                task.setup("fit")
        except MissingDataError as error:
            absent[column] = str(error)
        except (InputError, OSError):
            pass
    return absent


def missing_starts(jobs: Sequence[Job]) -> dict[str, str]:
    """Find the rows whose runs are to start from a run that is not here: the path of each."""
    starts = {
        job.planned.row: str(start)
        for job in jobs
        if not job.finished and (start := job.planned.options.get("model.init_from"))
    }
    return {row: start for row, start in starts.items() if not Path(start).exists()}


def missing_vectors(jobs: Sequence[Job]) -> str | None:
    """Say which word vectors runs are to start from that are still to be trained; None for none."""
    asked = {job.planned.options.get("data.vectors", "") for job in jobs if not job.finished}
    try:
        for vectors in asked:
            find_vectors(vectors)
    except InputError as error:
        return str(error)
    return None


def seconds_left(jobs: Sequence[Job]) -> float | None:
    """Estimate the training time of unfinished runs by that of finished ones; None without any."""
    outcomes = [outcome for job in jobs if (outcome := job.outcome)]
    taken = [found["seconds"] for found in outcomes if is_number(found.get("seconds"))]
    unfinished = len(jobs) - len(outcomes)
    return sum(taken) / len(taken) * unfinished if taken else None


def _describe_data(planned: PlannedRun) -> str:
    """Name what the data of a run depends on: rows with the same share the time to read it."""
    options = {k: v for k, v in planned.options.items() if k.startswith(_OF_DATA)}
    return repr((planned.configs, sorted(options.items())))


def _set_up(task: Task) -> Task | None:
    try:
        task.prepare_data()
        task.setup("fit")
    except (InputError, OSError):
        return None
    return task


def _parameters(model: ClusterFormer, task: Task | None) -> int | None:
    if task is None:
        return None
    with torch.device("meta"):
        network = task.build(model.transformer_config)
    return sum(weight.numel() for weight in network.parameters() if weight.requires_grad)
