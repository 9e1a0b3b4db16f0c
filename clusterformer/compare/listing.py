"""A list of the runs of a comparison, with their states and sizes, before any is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from clusterformer.compare.jobs import Job
from clusterformer.compare.notes import MAX_NAMED
from clusterformer.compare.planned_run import PlannedRun, name_cell
from clusterformer.data.word_vectors import find_vectors
from clusterformer.errors import InputError, MissingDataError, making
from clusterformer.module import ClusterFormer
from clusterformer.task import Task
from clusterformer.tasks.labelling import Labelling
from clusterformer.training.trainer_options import SLOW, is_slow_on_cpu
from clusterformer.wording import counted

_OF_DATA = "--data", "--model.pretrained", "--model.init_from"  # they bring their tokenizer

Maker = Callable[[list[str]], tuple[ClusterFormer, Task]]
"""Maker of the model and task that the options of `fit` describe."""


class ListedRuns(NamedTuple):
    """The runs of one cell of the table that train as many weights: its seeds and choices.

    Attributes:
        name: Row and column, and the seeds and number of choices.
        state: "finished", "begun", "to do" or, where not all are in one, such as "2 of 5" finished.
        size: Number of weights that each trains, "? parameters" where its data is not here, or
            "simple method", which has no network.
    """

    name: str
    state: str
    size: str


def list_runs(jobs: Sequence[Job], make: Maker) -> Iterator[ListedRuns]:
    """List the runs of each cell with their state and, where the model can be built, their size.

    Args:
        jobs: The runs.
        make: Maker of model and task; called once for each cell of the table, and choice in it.

    Raises:
        InputError: if a model cannot be built with its options.
    """
    cells: dict[tuple[str, str], dict[str, list[Job]]] = {}
    for job in jobs:
        choices = cells.setdefault((job.planned.row, job.planned.column), {})
        choices.setdefault(job.planned.choice, []).append(job)
    ready: dict[str, Task | None] = {}
    for choices in cells.values():
        alike: dict[str, list[Job]] = {}
        for seeds in choices.values():
            alike.setdefault(_size(seeds, make, ready), []).extend(seeds)
        for size, found in alike.items():
            yield ListedRuns(_name(found), _state(found), size)


def _size(seeds: Sequence[Job], make: Maker, ready: dict[str, Task | None]) -> str:
    """Tell the weights of runs that differ in their seeds; `ready` holds the tasks set up."""
    if results := next(filter(None, (job.outcome for job in seeds)), None):
        return _told(int(results["parameters"]))
    planned = seeds[0].planned
    if "method" in planned.options:
        return "simple method"
    model, task = make(planned.arguments_of_model())
    data = _describe_data(planned)
    if data not in ready:
        ready[data] = _set_up(task)
    with making(planned.name):
        return _told(_parameters(model, ready[data]))


def _told(parameters: int | None) -> str:
    return "? parameters" if parameters is None else f"{parameters:,} parameters"


def _name(jobs: Sequence[Job]) -> str:
    first, *others = (job.planned for job in jobs)
    if not others:
        return first.name
    seeds = list(dict.fromkeys(job.planned.seed for job in jobs))
    choices = {job.planned.choice for job in jobs}
    row = first.row if len(choices) > 1 or not first.choice else f"{first.row}, {first.choice}"
    few = f"seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {first.seed}"
    told = few if len(seeds) <= MAX_NAMED else counted(len(seeds), "seed")
    told += f"; {counted(len(choices), 'choice')}" if len(choices) > 1 else ""
    return f"{name_cell(row, first.column)}: {told}"


def _state(jobs: Sequence[Job]) -> str:
    states = ["finished" if job.finished else "begun" if job.run else "to do" for job in jobs]
    finished = states.count("finished")
    return states[0] if len({*states}) == 1 else f"{finished} of {len(jobs)}"


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
        planned = runs[0].planned
        if (needed := planned.before) and needed.column in absent:
            does = "tests the models" if planned.trained else "goes on from those"
            absent[column] = f"{does} of {needed.column}, which is left out"
            continue
        try:
            _, task = make(planned.arguments_of_model())
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
    asked = {job.planned.options.get("data.vectors", "") for job in _networks_to_train(jobs)}
    try:
        for vectors in asked:
            find_vectors(vectors)
    except InputError as error:
        return str(error)
    return None


def slow_precision(jobs: Sequence[Job]) -> str | None:
    """Say which precision of runs to be trained is slow on this machine's CPU; None for none."""
    if torch.cuda.is_available():
        return None
    for job in _networks_to_train(jobs):
        precision = str(job.options.get("trainer.precision"))
        if is_slow_on_cpu(precision):
            return f"trainer.precision {precision} {SLOW}; give the runs trainer.precision 32-true"
    return None


def _networks_to_train(jobs: Sequence[Job]) -> list[Job]:
    """Return unfinished jobs but those of a simple method, which has no vectors or precision."""
    return [job for job in jobs if not job.finished and "method" not in job.planned.options]


def _describe_data(planned: PlannedRun) -> str:
    """Name what the data of a run depends on: rows with the same share the time to read it."""
    words = planned.arguments_of_model()
    return repr([w for w in words if not w.startswith("--") or w.startswith(_OF_DATA)])


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
