"""`clusterformer bench exchange`: trained models with other mechanisms than their own."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from clusterformer.cli.arguments import available_device
from clusterformer.cli.bench_options import BenchArguments
from clusterformer.cli.bench_report import finish_report, update_report
from clusterformer.errors import InputError

if TYPE_CHECKING:
    from clusterformer.bench.report import Row
    from clusterformer.data.named_sets import Split

HELP = """
usage: clusterformer bench exchange --runs RUN ... [options]
       clusterformer bench exchange --comparison DIR [options]

Train with one mechanism, evaluate with another: the matrix of table 1 of the paper on clustered
attention. Each model is measured as it was trained ("own"), then with each other mechanism in its
layers, without further training. "keys seen" is the share of its text that a token attends to. A
mechanism that has weights of its own, that shares queries and keys where the model does not, or
that has no causal form where the model is causal, does not fit: "-" in the matrix.

  --runs RUN ...        run directories of `fit`
  --comparison DIR      directory of a comparison: all its finished runs but first parts, each row
                        on each data set apart; seeds are averaged
  --with NAME ...       mechanisms without weights, by class or as the paper calls them, with any
                        number of rounds, clusters or keys, such as oracle-top-16 (default:
                        full shared-full lsh-1 lsh-4 clustered-100 clustered-200 i-clustered-100
                        i-clustered-200 oracle-top)
  --stage validate      part of the data: validate (as in the paper) or test
  --measure NAME        measure to print, such as error_rate (default: that of the task)
  --device cpu          cpu, cuda or cuda:1
  --threads N           CPU threads (default: all cores)
  --out FILE.json       write all measures, and the time of the forward passes
"""

DEFAULT = (
    *("full", "shared-full", "lsh-1", "lsh-4", "clustered-100", "clustered-200"),
    *("i-clustered-100", "i-clustered-200", "oracle-top"),
)


def run(arguments: list[str]) -> None:
    """Measure all pairs, print each as it comes and then the matrix, write the JSON."""
    options = _parse(arguments)
    from clusterformer.api import load
    from clusterformer.bench import exchange
    from clusterformer.cli.evaluation import refuse_edited
    from clusterformer.wording import formatted

    runs = _runs(options)
    rows: list[Row] = []
    options.runs, options.comparison = [label for label, _ in runs], None
    for label, folder in runs:
        model = load(folder, device=options.device)
        part: Split = "valid" if options.stage == "validate" else "test"
        refuse_edited(model, part)
        measure = options.measure or model.task.monitor.removeprefix("val/")
        for row in exchange.measure(model.module, model.task, options.others, options.stage):
            row = {"run": label, **row}
            if "measures" in row:
                if measure not in row["measures"]:
                    known = ", ".join(sorted(row["measures"]))
                    raise InputError(f"--measure {measure}: {label} has {known}")
                row["value"] = row["measures"][measure]
                value = formatted(measure, row["value"])
                seen = row["measures"].get("keys_seen")
                keys = "" if seen is None else f", keys seen {seen:.3g}"
                print(f"{label}, with {row['mechanism']}: {measure} {value}{keys}", flush=True)
            else:
                print(f"{label}: does not fit: {row['refused']}", flush=True)
            rows.append(row)
            update_report(options, rows)
    print(f"\n{_matrix(rows)}")
    finish_report(options, rows)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = BenchArguments()
    parser.add_argument("--runs", nargs="+", type=Path)
    parser.add_argument("--comparison", type=Path)
    parser.add_argument("--with", dest="others", nargs="+", default=list(DEFAULT))
    parser.add_argument("--stage", choices=["validate", "test"], default="validate")
    parser.add_argument("--measure")
    parser.add_argument("--device", type=available_device, default="cpu")
    options = parser.parse(arguments)
    if (options.runs is None) == (options.comparison is None):
        raise InputError("give --runs or --comparison, one of them")
    return options


def _runs(options: argparse.Namespace) -> list[tuple[str, Path]]:
    """List run directories, each with the name of its column of the matrix."""
    if options.runs is not None:
        names = [_name(run.resolve()) for run in options.runs]
        return [
            (name if names.count(name) == 1 else str(run), run)
            for name, run in zip(names, options.runs, strict=True)
        ]
    from clusterformer.compare.jobs import finished_runs

    root: Path = options.comparison
    found = [run.folder for run in finished_runs(root)]
    if not found:
        raise InputError(f"{root}: no finished run of a comparison in it")
    return [(_label(*path.relative_to(root).parts[:2]), path) for path in found]


def _label(row: str, column: str) -> str:
    """Name a cell of a comparison; "all" is the column of one that has none."""
    return row if column == "all" else f"{row}/{column}"


def _name(run: Path) -> str:
    return f"{run.parent.name}/{run.name}" if run.parent.name else run.name


def _matrix(rows: list[Row]) -> str:
    """Write a line for each mechanism of evaluation and a column for each trained model."""
    from clusterformer.compare.tables import aligned

    labels = list(dict.fromkeys(row["run"] for row in rows))
    names = list(dict.fromkeys(row["mechanism"] for row in rows))
    cells: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if "value" in row:
            cells.setdefault((row["mechanism"], row["run"]), []).append(row["value"])
    table = [["evaluated with", *labels]]
    for name in names:
        found = (cells.get((name, label)) for label in labels)
        table.append([name, *(f"{statistics.mean(each):.4f}" if each else "-" for each in found)])
    return aligned(table)
