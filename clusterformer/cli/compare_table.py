"""Table and page of a comparison, as `clusterformer compare` writes and prints them."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clusterformer.errors import InputError
from clusterformer.wording import suggested

if TYPE_CHECKING:
    from clusterformer.compare.choosing import Choice
    from clusterformer.compare.plan import Plan
    from clusterformer.compare.planned_run import PlannedRun
    from clusterformer.compare.results import Result


def write_table(
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
        refuse_unknown_baseline(options, {result.row for result in results})
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


def refuse_unknown_baseline(options: argparse.Namespace, rows: set[str]) -> None:
    """Raise an InputError if `--baseline` names none of the rows."""
    name = options.baseline
    if name and name not in rows:
        raise InputError(f"no row {name!r}; {suggested(name, sorted(rows))}")
