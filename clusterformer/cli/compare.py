"""`clusterformer compare`: train what a file lists, and set it side by side."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from clusterformer.errors import InputError

if TYPE_CHECKING:
    from clusterformer.comparison.plan import Plan
    from clusterformer.comparison.results import Result
    from clusterformer.comparison.runner import Place

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

OPTIONS = (
    "out", "jobs", "shard", "metric", "baseline", "title", "from-wandb", "group", "sweep"
)  # fmt: skip


def run(arguments: list[str]) -> None:
    """Train what is left to train, then write and show the comparison."""
    from clusterformer.cli.options import take

    values = {}
    for option in OPTIONS:
        values[option], arguments = take(arguments, f"--{option}")
    flags = {flag: flag in arguments for flag in ("--dry-run", "--wandb")}
    sources = [argument for argument in arguments if argument not in flags]
    unknown = [argument for argument in sources if argument.startswith("-")]
    if unknown:
        raise InputError(f"unknown option {unknown[0]}; compare --help lists what there is")
    chosen = {key: values[key] for key in ("metric", "baseline", "title")}
    if values["from-wandb"]:
        from clusterformer.comparison.results import of_wandb

        if not values["group"]:
            raise InputError("--from-wandb needs --group")
        results = of_wandb(values["from-wandb"], values["group"])
        _write(results, _folder(values["out"], values["group"]), chosen)
    elif len(sources) == 1 and not Path(sources[0]).is_dir():
        _compare(sources[0], values, chosen, flags)
    elif sources:
        from clusterformer.comparison.results import of_folders

        _write(of_folders(sources), _folder(values["out"], "runs"), chosen)
    else:
        raise InputError("name a file of a comparison, or run folders")


def _compare(
    name: str, values: dict[str, str | None], chosen: dict[str, str | None], flags: dict[str, bool]
) -> None:
    from clusterformer.comparison.plan import read_plan
    from clusterformer.comparison.results import of_run
    from clusterformer.comparison.runner import Place, train

    path = _find(name)
    plan = read_plan(path)
    if values["sweep"]:
        from clusterformer.comparison.wandb import sweep

        Path(values["sweep"]).write_text(sweep(plan), encoding="utf-8")
        print(f"written: {values['sweep']}; start it with: wandb sweep {values['sweep']}")
        return
    if flags["--dry-run"]:
        _list(plan, _folder(values["out"], path.stem))
        return
    folder = _folder(values["out"], path.stem)
    places = [Place(folder, planned) for planned in plan.runs]
    for place in places:
        place.record()
    mine = _shard(places, values["shard"])
    jobs = _positive(values["jobs"] or "1", "--jobs")
    failed = train(
        mine, jobs=jobs, wandb=flags["--wandb"], group=path.stem, say=lambda s: print(s, flush=True)
    )
    results = [
        of_run(place.run, place.planned.row, place.planned.column, place.planned.seed)
        for place in places
        if place.finished and place.run
    ]
    chosen = {
        "metric": chosen["metric"] or plan.metric,
        "baseline": chosen["baseline"] or plan.baseline,
        "title": chosen["title"] or plan.title,
    }
    if results:
        _write(results, folder, chosen, plan, wandb=flags["--wandb"])
    if failed:
        raise InputError(
            f"{len(failed)} of {len(mine)} runs failed: "
            + "; ".join(f"{planned.name}: {said}" for planned, said in failed)
        )
    if len(results) < len(places):
        print(f"{len(results)} of {len(places)} runs are finished; the same command goes on")


def _write(
    results: list[Result],
    folder: Path,
    chosen: dict[str, str | None],
    plan: Plan | None = None,
    wandb: bool = False,
) -> None:
    from clusterformer.comparison.page import page
    from clusterformer.comparison.summary import summarise
    from clusterformer.comparison.tables import latex, markdown, runs_csv, text

    if chosen["baseline"] and chosen["baseline"] not in (rows := {r.row for r in results}):
        raise InputError(f"no row {chosen['baseline']!r}; there are {', '.join(sorted(rows))}")
    paper = plan.paper if plan else None
    summary = summarise(results, chosen["metric"], chosen["baseline"], paper)
    folder.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["clusterformer", *sys.argv[1:]])
    files = {
        "runs.csv": runs_csv(summary),
        "table.md": markdown(summary),
        "table.tex": latex(summary),
    }
    try:
        files["index.html"] = page(summary, chosen["title"] or folder.name, command)
    except ImportError:
        print("no page: pip install 'clusterformer[plots]'")
    for name, content in files.items():
        partial = folder / f"{name}.partial"
        partial.write_text(content, encoding="utf-8")
        partial.replace(folder / name)
    print(f"\n{text(summary)}\n\nwritten: {folder}: {', '.join(files)}")
    if wandb:
        from clusterformer.comparison.wandb import log

        log(summary, folder)


def _list(plan: Plan, folder: Path) -> None:
    """Print every run with its state and, where it can be built here, its parameters."""
    from clusterformer.comparison.runner import Place, parameters

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
            sizes[key] = f"{done['parameters']:,}" if done else parameters(planned)
        print(f"{state:<9} {sizes[key]:>12} parameters  {planned.name}")
    left = sum(not Place(folder, planned).finished for planned in plan.runs)
    told = f", about {sum(seconds) / len(seconds) * left / 60:.0f} min" if seconds else ""
    print(f"{len(plan.runs)} runs, {left} to train{told}")


def _find(name: str) -> Path:
    from clusterformer.cli.configs import comparisons

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


def _folder(out: str | None, name: str) -> Path:
    return Path(out) if out else Path("comparisons") / name


def _shard(places: list[Place], shard: str | None) -> list[Place]:
    if shard is None:
        return places
    number, slash, of = shard.partition("/")
    if not (slash and number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
        raise InputError(f"--shard is I/N with I from 1 to N, got {shard}")
    return places[int(number) - 1 :: int(of)]


def _positive(value: str, option: str) -> int:
    if not value.isdigit() or int(value) < 1:
        raise InputError(f"{option} must be a number from 1, got {value}")
    return int(value)
