"""`clusterformer compare FILE.yaml`: train, list or submit the runs that a file lists."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from clusterformer.cli.compare_table import refuse_unknown_baseline, write_table
from clusterformer.cli.output import announce_replacement
from clusterformer.errors import InputError
from clusterformer.whole_files import write_text
from clusterformer.wording import duration

if TYPE_CHECKING:
    from clusterformer.compare.jobs import Job
    from clusterformer.compare.plan import Plan


def compare_plan(options: argparse.Namespace) -> None:
    """Train the runs of a file that are not finished, or list, submit or export them, as asked.

    Raises:
        InputError: if the file or an option is wrong, or a run failed; the others are trained.
    """
    from clusterformer.compare.model_tests import make_jobs
    from clusterformer.compare.plan import find_plan, read_plan
    from clusterformer.compare.runner import select_shard

    path = find_plan(options.sources[0])
    plan = read_plan(path).part(options.rows, options.columns, options.seeds)
    refuse_unknown_baseline(options, {planned.row for planned in plan.runs})
    if options.sweep:
        _write_sweep(options.sweep, plan, path)
        return
    folder = options.out or Path("comparisons") / path.stem
    jobs = make_jobs(folder, plan.all_runs)
    if plan.skip_absent:
        plan = _present(jobs, plan)
        jobs = make_jobs(folder, plan.all_runs)
    _warn(jobs, slow_machine=not options.slurm)
    if options.dry_run or options.slurm:
        for job in jobs:
            job.refuse_other()
    if options.dry_run:
        _list(select_shard(jobs, options.shard), options.jobs)
    elif options.slurm:
        _submit(jobs, options, folder)
    else:
        _train(jobs, options, folder, plan, group=path.stem)


def _write_sweep(target: Path, plan: Plan, path: Path) -> None:
    """Write the runs of a plan, read from `path`, as a sweep of W&B."""
    from clusterformer.compare.sweep import sweep

    if target.exists() and target.samefile(path):
        raise InputError(f"--sweep {target}: the file of the comparison itself")
    announce_replacement("--sweep", target)
    write_text(target, sweep(plan, path.stem))
    print(f"written: {target}; start it with: wandb sweep {target}")


def _warn(jobs: Sequence[Job], *, slow_machine: bool) -> None:
    """Warn of runs that will fail, and with `slow_machine` of those that are slow on this one."""
    from clusterformer.compare.listing import missing_starts, missing_vectors, slow_precision

    for row, start in missing_starts(jobs).items():
        told = f"{row}: model.init_from: no {start} here; these runs will fail without it"
        print(f"{told}; train it first", file=sys.stderr)
    if absent := missing_vectors(jobs):
        print(f"{absent}; these runs will fail without them", file=sys.stderr)
    if slow_machine and (slow := slow_precision(jobs)):
        print(slow, file=sys.stderr)


def _train(
    jobs: Sequence[Job], options: argparse.Namespace, folder: Path, plan: Plan, *, group: str
) -> None:
    """Train the runs of this shard, then write the table of all that are finished.

    Raises:
        InputError: if a run failed.
    """
    from clusterformer.compare.runner import (
        explain,
        lock_comparison,
        lock_page,
        select_shard,
        train_jobs,
    )

    mine = select_shard(jobs, options.shard)
    with lock_comparison(folder, options.shard):
        for job in jobs:
            job.record()
        failures = train_jobs(
            mine,
            num_parallel=options.jobs,
            wandb=options.wandb,
            group=group,
            report=partial(print, flush=True),
        )
    with lock_page(folder):
        number = _write_finished(jobs, options, folder, plan)
    if failures:
        raise InputError(f"{len(failures)} of {len(mine)} runs failed: {explain(failures)}")
    if number < len(jobs):
        print(f"{number} of {len(jobs)} runs are finished; the same command resumes")


def _write_finished(
    jobs: Sequence[Job], options: argparse.Namespace, folder: Path, plan: Plan
) -> int:
    """Write and print the table of the runs that are finished by now; return their number."""
    from clusterformer.compare.choosing import choose_by_validation

    results_of = {job.planned.subfolder: job.result for job in jobs}
    finished = [(planned, results_of[planned.subfolder]) for planned in plan.runs]
    results, choices = choose_by_validation(finished)
    for choice in choices:
        if choice.missing:
            without = f"chosen without {', '.join(choice.missing)}, which has no finished run"
            print(f"{choice.cell}: {without}", file=sys.stderr)
    for job in jobs:
        if damage := job.damage:
            print(f"left out: {job.planned.name}: {damage}", file=sys.stderr)
    if results:
        unfinished = [planned for planned, result in finished if result is None]
        write_table(results, options, folder, plan, choices, unfinished)
    return sum(job.finished for job in jobs)


def _present(jobs: Sequence[Job], plan: Plan) -> Plan:
    """Leave out the columns whose data set is not here, and say which."""
    from clusterformer.cli.options import make_model_and_task
    from clusterformer.compare.listing import absent_columns

    absent = absent_columns(jobs, make_model_and_task)
    for column, message in absent.items():
        print(f"left out: column {column}: {message}", file=sys.stderr)
    present = [planned for planned in plan.runs if planned.column not in absent]
    if not present:
        raise InputError("no column has its data set here; the lines above say what brings them")
    return replace(plan, runs=present)


def _submit(jobs: Sequence[Job], options: argparse.Namespace, folder: Path) -> None:
    """Hand the unfinished runs to Slurm."""
    from clusterformer.compare.runner import split_into_shards
    from clusterformer.compare.slurm import submit, write_script

    total = min(options.slurm, len(jobs))
    dealt = split_into_shards(jobs, total)
    shards = [i for i, shard in enumerate(dealt, 1) if not all(job.finished for job in shard)]
    if not shards:
        print(f"all {len(jobs)} runs are finished; without --slurm the table is made")
        return
    arguments = [*options.sources, "--out", str(folder), "--jobs", str(options.jobs)]
    arguments += ["--rows", *options.rows] if options.rows else []
    arguments += ["--columns", *options.columns] if options.columns else []
    arguments += ["--seeds", str(options.seeds)] if options.seeds else []
    arguments += ["--wandb"] if options.wandb else []
    for name in ("metric", "baseline", "title"):
        arguments += [f"--{name}={value}"] if (value := getattr(options, name)) else []
    script = write_script(folder, arguments, shards, total, options.sbatch)
    print(submit(script))
    print(f"{len(shards)} of {total} tasks have runs to train; logs: {folder / 'slurm'}")


def _list(jobs: Sequence[Job], num_parallel: int) -> None:
    from clusterformer.cli.options import make_model_and_task
    from clusterformer.compare.listing import absent_columns, list_runs
    from clusterformer.compare.remaining import count_work, seconds_left

    for name, state, size in list_runs(jobs, make_model_and_task):
        print(f"{state:<9} {size:>23}  {name}")
    for column, message in absent_columns(jobs, make_model_and_task).items():
        print(f"no data for {column or 'these runs'}: {message}", file=sys.stderr)
    unfinished = [job for job in jobs if not job.finished]
    told = f"{len(jobs) - len(unfinished):,} of {len(jobs):,} are finished"
    seconds = seconds_left(jobs)
    estimate = "" if seconds is None else f", about {duration(seconds / num_parallel)}"
    print(f"{told}; {count_work(unfinished)}{estimate}" if unfinished else told)
