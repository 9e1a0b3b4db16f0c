"""`clusterformer compare`: train the runs that a file lists, and compare their results."""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

from clusterformer.cli.arguments import Arguments
from clusterformer.cli.compare_plan import compare_plan
from clusterformer.cli.compare_table import write_table
from clusterformer.errors import InputError

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
        compare_plan(options)
        return
    _refuse_options_of_files(options)
    if options.from_wandb:
        _compare_wandb(options)
    else:
        _compare_runs(options)


def _compare_wandb(options: argparse.Namespace) -> None:
    from clusterformer.compare.output import refuse_planned
    from clusterformer.compare.wandb_runs import fetch_results, folder_of

    folder = options.out or folder_of(options.group)
    refuse_planned(folder)
    write_table(fetch_results(options.from_wandb, options.group), options, folder)


def _compare_runs(options: argparse.Namespace) -> None:
    from clusterformer.compare.output import refuse_planned
    from clusterformer.compare.results import read_results

    if files := [s for s in options.sources if s.endswith(".yaml") or _names_shipped(s)]:
        raise InputError(f"{files[0]}: a file of a comparison; give one such file, or only runs")
    folder = options.out or _next_folder()
    refuse_planned(folder)
    results = read_results(options.sources, lambda line: print(line, file=sys.stderr))
    write_table(results, options, folder)


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
