"""`clusterformer compare`: train the runs that a file lists, and compare their results."""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from clusterformer.cli.arguments import Arguments
from clusterformer.cli.output import announce_replacement
from clusterformer.errors import InputError
from clusterformer.whole_files import write_text
from clusterformer.wording import duration, suggested

if TYPE_CHECKING:
    from clusterformer.compare.choosing import Choice
    from clusterformer.compare.jobs import Job
    from clusterformer.compare.plan import Plan
    from clusterformer.compare.planned_run import PlannedRun
    from clusterformer.compare.results import Result

HELP = """
usage: clusterformer compare FILE.yaml [options]
       clusterformer compare RUN RUN ... [options]
       clusterformer compare --from-wandb ENTITY/PROJECT --group NAME [options]

Train every run that a file lists, and write a table and a page of the results. A finished run is
never trained again: after a kill or Ctrl-C, the same command resumes. Or compare finished runs,
from their run directories or from Weights & Biases.

  --out DIR          directory of runs, table and page (default: comparisons/NAME; of runs that are
                     named by their directories comparisons/runs, or the next number: runs-2)
  --rows NAME ...    only these rows of the file, --columns NAME ... only these columns, --seeds N
                     only its first N seeds (default: all)
  --jobs 1           number of runs to train at a time
  --shard I/N        train only every N-th run, from the I-th on (1/N .. N/N), on one of N machines
                     that share the directory; each makes the table of all finished runs
  --slurm N          submit the runs as a Slurm job array of N tasks, train nothing here; the same
                     command later submits only what has not finished
  --sbatch=OPTIONS   options of sbatch in one word, such as --sbatch="--time=8:00:00 --gres=gpu:1"
  --dry-run          list the runs, each row and column in a line, with their numbers of
                     parameters, and how many are finished; train nothing
  --metric NAME      measure to compare (default: the test value of the measure that chose the
                     checkpoint)
  --baseline ROW     row to test the others against (default: the first)
  --title TEXT       title of the page
  --wandb            log each run, in one group, and the table and page to Weights & Biases
  --sweep FILE       write the same grid as a W&B sweep for `wandb agent`, train nothing

A YAML file lists models (rows) and data sets (columns); configs/compare/quickstart.yaml is an
example. Shipped files are found by bare name.

  config: mr.yaml                  configuration of all runs, a name or a list
  rows:                            options of each model, dotted keys of fit
    full attention: {model.attention: FullAttention}
    neural clustering: {}
    majority: {method: majority label}  a simple method; with columns: [MR], there alone
  columns:                         options of each data set
    MR: {config: mr.yaml}
    CR: {config: cr.yaml}
                                   rows: {full attention: {...}} in a column: for that row only
  first: {short: {...}}            as columns, but trained before; a column with `after: short` goes
                                   on from it, and it is not in the table itself
                                   trained_on: MR in a column: the models of MR are only tested,
                                   with the options of this column, such as longer texts
  grid: {model.lr: [0.001, 0.002]} lists of values; each combination makes further rows
  choose: {model.lr: [...]}        likewise, but each row and column shows the values that are best
                                   in validation
  seeds: [0, 1, 2]
  seed_options: [data.fold]        options that get the seed too: a fold for each
  skip_absent: true                leave out columns whose data set is not here, and say so

examples:
  clusterformer compare quickstart
  clusterformer compare runs/mr/1 runs/mr/2 --out comparisons/mr
"""


def run(arguments: list[str]) -> None:
    """Train the runs that are not finished, then write and print the comparison."""
    options = _parse(arguments)
    if not options.from_wandb and len(options.sources) == 1 and _names_plan(options.sources[0]):
        _compare(options)
        return
    _refuse_options_of_files(options)
    from clusterformer.compare.output import refuse_planned

    if options.from_wandb:
        from clusterformer.compare.wandb_runs import fetch_results, folder_of

        folder = options.out or folder_of(options.group)
        refuse_planned(folder)
        _write(fetch_results(options.from_wandb, options.group), options, folder)
    else:
        from clusterformer.compare.results import read_results

        if files := [s for s in options.sources if s.endswith(".yaml") or _names_shipped(s)]:
            raise InputError(
                f"{files[0]}: a file of a comparison; give one such file, or only runs"
            )
        folder = options.out or _next_folder()
        refuse_planned(folder)
        results = read_results(options.sources, lambda line: print(line, file=sys.stderr))
        _write(results, options, folder)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Arguments()
    parser.add_argument("sources", nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", nargs="+")
    parser.add_argument("--columns", nargs="+")
    parser.add_number("--seeds")
    parser.add_number("--jobs", default=1)
    parser.add_number("--slurm")
    parser.add_argument("--sbatch", default="")
    for option in ("shard", "metric", "baseline", "title", "from-wandb", "group"):
        parser.add_argument(f"--{option}")
    parser.add_argument("--sweep", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--wandb", action="store_true")
    options = parser.parse_args(arguments)
    if options.sbatch and not options.slurm:
        raise InputError("--sbatch needs --slurm N, the number of tasks")
    if options.slurm and options.shard:
        raise InputError("--slurm chooses the shards itself; leave --shard out")
    if options.from_wandb and not options.group:
        raise InputError("--from-wandb needs --group")
    if options.group and not options.from_wandb:
        raise InputError("--group needs --from-wandb ENTITY/PROJECT")
    if options.from_wandb and options.sources:
        raise InputError(f"--from-wandb takes no files or runs, got {' '.join(options.sources)}")
    if not options.from_wandb and not options.sources:
        raise InputError("name a file of a comparison, or run directories")
    return options


def _refuse_options_of_files(options: argparse.Namespace) -> None:
    """Refuse options of a training where finished runs are compared."""
    names = ("rows", "columns", "seeds", "shard", "slurm", "sweep", "dry_run", "wandb")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]
    given += ["--jobs"] if options.jobs > 1 else []
    if given:
        raise InputError(f"{', '.join(given)}: for one file of a comparison, not for runs")


def _names_plan(source: str) -> bool:
    """Tell whether a word names a plan, not a run directory; one may have a shipped plan's name."""
    return not Path(source).is_dir() or _names_shipped(source)


def _names_shipped(source: str) -> bool:
    """Tell whether a word is the name of a shipped plan, and not a run directory of that name."""
    from clusterformer.training.config_files import comparisons

    return f"{source}.yaml" in comparisons() and not (Path(source) / "config.yaml").exists()


def _next_folder() -> Path:
    """Return comparisons/runs or, if it is there, that with the next number."""
    first = Path("comparisons") / "runs"
    numbered = (first.with_name(f"runs-{number}") for number in itertools.count(2))
    return next(folder for folder in itertools.chain([first], numbered) if not folder.exists())


def _compare(options: argparse.Namespace) -> None:
    from clusterformer.compare.listing import missing_starts, missing_vectors, slow_precision
    from clusterformer.compare.model_tests import make_jobs
    from clusterformer.compare.plan import find_plan, read_plan
    from clusterformer.compare.runner import (
        explain,
        lock_comparison,
        lock_page,
        select_shard,
        train_jobs,
    )

    path = find_plan(options.sources[0])
    plan = read_plan(path).part(options.rows, options.columns, options.seeds)
    _refuse_unknown_baseline(options, {planned.row for planned in plan.runs})
    if options.sweep:
        from clusterformer.compare.sweep import sweep

        if options.sweep.exists() and options.sweep.samefile(path):
            raise InputError(f"--sweep {options.sweep}: the file of the comparison itself")
        announce_replacement("--sweep", options.sweep)
        write_text(options.sweep, sweep(plan, path.stem))
        print(f"written: {options.sweep}; start it with: wandb sweep {options.sweep}")
        return
    folder = options.out or Path("comparisons") / path.stem
    jobs = make_jobs(folder, plan.all_runs)
    if plan.skip_absent:
        plan = _present(jobs, plan)
        jobs = make_jobs(folder, plan.all_runs)
    for row, start in missing_starts(jobs).items():
        told = f"{row}: model.init_from: no {start} here; these runs will fail without it"
        print(f"{told}; train it first", file=sys.stderr)
    if absent := missing_vectors(jobs):
        print(f"{absent}; these runs will fail without them", file=sys.stderr)
    if not options.slurm and (slow := slow_precision(jobs)):
        print(slow, file=sys.stderr)
    if options.dry_run or options.slurm:
        for job in jobs:
            job.refuse_other()
    if options.dry_run:
        _list(select_shard(jobs, options.shard), options.jobs)
        return
    if options.slurm:
        _submit(jobs, options, folder)
        return
    mine = select_shard(jobs, options.shard)
    with lock_comparison(folder, options.shard):
        for job in jobs:
            job.record()
        failures = train_jobs(
            mine,
            num_parallel=options.jobs,
            wandb=options.wandb,
            group=path.stem,
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
        _write(results, options, folder, plan, choices, unfinished)
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


def _write(
    results: Sequence[Result],
    options: argparse.Namespace,
    folder: Path,
    plan: Plan | None = None,
    choices: Sequence[Choice] = (),
    unfinished: Sequence[PlannedRun] = (),
) -> None:
    """Write and print the table; the command line goes before the plan."""
    from clusterformer.cli.options import pop_option
    from clusterformer.compare.output import write_files
    from clusterformer.compare.statistics import summarise
    from clusterformer.compare.tables import text
    from clusterformer.compare.verdict import verdict

    if plan is None:
        _refuse_unknown_baseline(options, {result.row for result in results})
    summary = summarise(
        results,
        options.metric or (plan.metric if plan else None),
        options.baseline or (plan.baseline if plan else None),
        plan.paper if plan else None,
        plan.also if plan else (),
        choices,
        unfinished,
    )
    for note in summary.notes:
        print(note, file=sys.stderr)
    title = options.title or (plan.title if plan else folder.resolve().name)
    _, words = pop_option(sys.argv[1:], "--shard")  # the page is of the runs of all shards
    command = shlex.join(["clusterformer", *words])
    names = write_files(summary, folder, title=title, command=command)
    if "index.html" not in names:
        print("no page: pip install 'clusterformer[plots]'")
    print(f"\n{text(summary)}\n\n{verdict(summary)}\n\nwritten: {folder}: {', '.join(names)}")
    if plan and options.wandb:
        from clusterformer.compare.plan import find_plan
        from clusterformer.compare.wandb_runs import log_comparison

        log_comparison(summary, folder, find_plan(options.sources[0]).stem)


def _refuse_unknown_baseline(options: argparse.Namespace, rows: set[str]) -> None:
    name = options.baseline
    if name and name not in rows:
        raise InputError(f"no row {name!r}; {suggested(name, sorted(rows))}")


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
