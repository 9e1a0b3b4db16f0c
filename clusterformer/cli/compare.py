"""`clusterformer compare`: train what a file lists, and set it side by side."""

from __future__ import annotations

import argparse
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from clusterformer.cli.arguments import Arguments
from clusterformer.errors import InputError, require_at_least

if TYPE_CHECKING:
    from clusterformer.compare.plan import Plan, PlannedRun
    from clusterformer.compare.results import Result
    from clusterformer.compare.runner import Place

HELP = """
usage: clusterformer compare FILE.yaml [options]
       clusterformer compare RUN RUN ... [options]
       clusterformer compare --from-wandb ENTITY/PROJECT --group NAME [options]

Train every run that a file lists, and write a table and a page of the results. What is finished is
never trained again: after a kill or Ctrl-C, the same command goes on. Or set finished runs side by
side, from their folders or from Weights & Biases.

  --out DIR          folder of runs, table and page (default: comparisons/NAME)
  --jobs N           runs at once (default: 1)
  --shard I/N        train only every N-th run, from the I-th on (1/N .. N/N), as one of N machines
                     that share the folder; each then makes the table of what is finished
  --dry-run          list the runs with their parameters, train nothing
  --metric NAME      compare this measure (default: the test value of what chose the checkpoint)
  --baseline ROW     test the others against this row (default: the first)
  --title TEXT       of the page
  --wandb            log each run to Weights & Biases in one group, and the table and page as well
  --sweep FILE       write the same grid as a W&B sweep for `wandb agent`, train nothing

The file (see configs/compare/quickstart.yaml; shipped ones are found by bare name):

  config: mr.yaml                  for all runs, a name or a list
  rows:                            what is compared: dotted keys of fit
    full attention: {model.attention: FullAttention}
    neural clustering: {}
  columns:                         on what
    MR: {config: mr.yaml}
    CR: {config: cr.yaml}
  grid: {model.lr: [0.001, 0.002]} every combination makes rows of its own
  seeds: [0, 1, 2]

examples:
  clusterformer compare quickstart
  clusterformer compare runs/mr/1 runs/mr/2 --out comparisons/mr
"""


def run(arguments: list[str]) -> None:
    """Train what is left to train, then write and show the comparison."""
    options = _parse(arguments)
    if options.from_wandb:
        from clusterformer.compare.results import of_wandb

        results = of_wandb(options.from_wandb, options.group)
        _write(results, options.out or _folder(options.group), options)
    elif len(options.sources) == 1 and not Path(options.sources[0]).is_dir():
        _compare(options)
    else:
        from clusterformer.compare.results import of_folders

        _write(of_folders(options.sources), options.out or _folder("runs"), options)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Arguments("compare")
    parser.add_argument("sources", nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    for option in ("shard", "metric", "baseline", "title", "from-wandb", "group"):
        parser.add_argument(f"--{option}")
    parser.add_argument("--sweep", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--wandb", action="store_true")
    options = parser.parse_args(arguments)
    require_at_least(1, **{"--jobs": options.jobs})
    if options.from_wandb and not options.group:
        raise InputError("--from-wandb needs --group")
    if not options.from_wandb and not options.sources:
        raise InputError("name a file of a comparison, or run folders")
    return options


def _compare(options: argparse.Namespace) -> None:
    from clusterformer.compare.plan import read_plan
    from clusterformer.compare.results import of_run
    from clusterformer.compare.runner import Place, train

    path = _find(options.sources[0])
    plan = read_plan(path)
    if options.sweep:
        from clusterformer.compare.wandb_runs import sweep

        options.sweep.write_text(sweep(plan, path.stem), encoding="utf-8")
        print(f"written: {options.sweep}; start it with: wandb sweep {options.sweep}")
        return
    folder = options.out or _folder(path.stem)
    if options.dry_run:
        _list(plan, folder)
        return
    places = [Place(folder, planned) for planned in plan.runs]
    for place in places:
        place.record()
    mine = _shard(places, options.shard)
    say = partial(print, flush=True)
    failed = train(mine, jobs=options.jobs, wandb=options.wandb, group=path.stem, say=say)
    results = [
        of_run(place.run, place.planned.row, place.planned.column, place.planned.seed)
        for place in places
        if place.finished and place.run
    ]
    if results:
        _write(results, folder, options, plan)
    if failed:
        raise InputError(
            f"{len(failed)} of {len(mine)} runs failed: "
            + "; ".join(f"{planned.name}: {said}" for planned, said in failed)
        )
    if len(results) < len(places):
        print(f"{len(results)} of {len(places)} runs are finished; the same command goes on")


def _write(
    results: list[Result], folder: Path, options: argparse.Namespace, plan: Plan | None = None
) -> None:
    """Write table and page; what the command line does not choose, the plan does."""
    from clusterformer.compare.page import page
    from clusterformer.compare.statistics import summarise
    from clusterformer.compare.tables import latex, markdown, runs_csv, text

    rows = {result.row for result in results}
    if options.baseline and options.baseline not in rows:
        raise InputError(f"no row {options.baseline!r}; there are {', '.join(sorted(rows))}")
    metric = options.metric or (plan.metric if plan else None)
    baseline = options.baseline or (plan.baseline if plan else None)
    title = options.title or (plan.title if plan else folder.name)
    summary = summarise(results, metric, baseline, plan.paper if plan else None)
    folder.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["clusterformer", *sys.argv[1:]])
    files = {
        "runs.csv": runs_csv(summary),
        "table.md": markdown(summary),
        "table.tex": latex(summary),
    }
    try:
        files["index.html"] = page(summary, title, command)
    except ImportError:
        print("no page: pip install 'clusterformer[plots]'")
    for name, content in files.items():
        partial = folder / f"{name}.partial"
        partial.write_text(content, encoding="utf-8")
        partial.replace(folder / name)
    print(f"\n{text(summary)}\n\nwritten: {folder}: {', '.join(files)}")
    if plan and options.wandb:
        from clusterformer.compare.wandb_runs import log

        log(summary, folder)


def _list(plan: Plan, folder: Path) -> None:
    """Print every run with its state and, where it can be built here, its parameters."""
    from clusterformer.compare.runner import Place

    sizes: dict[str, str] = {}
    seconds = []
    for planned in plan.runs:
        place = Place(folder, planned)
        done = place.run.results if place.run else None
        state = "finished" if done else "begun" if place.run else "to do"
        if done:
            seconds.append(done["seconds"])
        key = f"{planned.row}\0{planned.column}"
        if key not in sizes:
            sizes[key] = f"{done['parameters']:,}" if done else _parameters(planned)
        print(f"{state:<9} {sizes[key]:>12} parameters  {planned.name}")
    left = sum(not Place(folder, planned).finished for planned in plan.runs)
    told = f", about {sum(seconds) / len(seconds) * left / 60:.0f} min" if seconds else ""
    print(f"{len(plan.runs)} runs, {left} to train{told}")


def _find(name: str) -> Path:
    from clusterformer.training.config_files import comparisons

    if Path(name).is_file():
        return Path(name)
    known = comparisons()
    found = known.get(name) or known.get(f"{name}.yaml")
    if found is None:
        raise InputError(
            f"no comparison {name!r}, neither a file nor a shipped one; "
            f"there is {', '.join(known) or 'none'}"
        )
    return found


def _folder(name: str) -> Path:
    return Path("comparisons") / name


def _shard(places: list[Place], shard: str | None) -> list[Place]:
    if shard is None:
        return places
    number, slash, of = shard.partition("/")
    if not (slash and number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
        raise InputError(f"--shard is I/N with I from 1 to N, got {shard}")
    return places[int(number) - 1 :: int(of)]


def _parameters(planned: PlannedRun) -> str:
    """How many weights a run would train, as text: "?" where its data is not here."""
    import torch

    from clusterformer.cli.options import Options

    options = Options(planned.arguments(), fitting=True)
    task = options.task
    try:
        task.prepare_data()
        task.setup("fit")
    except (InputError, OSError):
        return "?"
    with torch.device("meta"):
        network = task.build(options.model.transformer_config)
    return f"{sum(weight.numel() for weight in network.parameters() if weight.requires_grad):,}"
