"""`clusterformer cluster`: cluster any points, and compare methods."""

from __future__ import annotations

import argparse
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clusterformer.bench.cluster_methods import METHODS
from clusterformer.cli.arguments import Arguments
from clusterformer.errors import InputError

if TYPE_CHECKING:
    from clusterformer.bench.report import Row
    from clusterformer.data.points import Points
    from clusterformer.training.runs import Run

INDENT = "\n" + 24 * " "
HELP = f"""
usage: clusterformer cluster [options]

Cluster points by several methods with several seeds, and compare. Needs clusterformer[cluster].

  --data digits         digits (comes with scikit-learn), mnist, 20news, or a file: .npy, .npz (x,
                        and optionally y, x_test and y_test), .csv or .tsv of numbers, .txt or .vec
                        of word vectors in GloVe's format
  --root DIR            directory of the named sets (default: $CLUSTERFORMER_DATA)
  --label_column NAME   column of a table that holds labels, by name or by number from 1
  --n_clusters 10 50 100
                        numbers of clusters, each tried
  --methods neural kmeans
                        {INDENT.join(f"{name}: {what}" for name, what in METHODS.items())}
  --seeds 1             repetitions, with seeds 0, 1, ...
  --hidden 256          units of the hidden layer of neural-hidden and neural-augmented
  --balance 1 --no-merge --n_neighbors 5 --n_init 1 --device cpu
                        further options of the neural methods, those of NeuralClustering
  --threads N           CPU threads of all methods (default: all cores)
  --runs runs           parent of the run directory, which gets results.csv, results.json and
                        pictures
  --map tsne            method that places points on the map: tsne, or pca, which is faster
  --no-pictures         draw nothing
  --wandb               log every row to Weights & Biases too

Where there are labels, accuracy names each cluster by its majority label among training points and
is measured on test points. Time is that of the fit, memory the growth of the process during it.

examples:
  clusterformer cluster
  clusterformer cluster --data mnist --n_clusters 10 50 100 200 300 --seeds 5 \\
      --methods neural neural-hidden kmeans minibatch-kmeans som
  clusterformer cluster --data vectors.npy --n_clusters 100
"""

_NEURAL = ("balance", "merge", "n_neighbors", "n_init", "device")
_PATHS = ("root", "runs")  # options that do not change the results


def run(arguments: list[str]) -> None:
    """Cluster, print the table, write results and pictures."""
    import torch

    from clusterformer.data.points import read_points
    from clusterformer.training.runs import Run

    options = _parse(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    points = read_points(options.data, root=options.root, label_column=options.label_column)
    largest = max(options.n_clusters)
    if largest > len(points.train):
        raise InputError(f"--n_clusters {largest} is more than the {len(points.train)} points")
    found = Run.create(options.runs, f"cluster-{Path(options.data).name.partition('.')[0]}")
    number, width = points.train.shape
    print(f"{number} points, {width} columns; run directory: {found.folder}", flush=True)
    try:
        _compare(found, points, options, f"clusterformer cluster {shlex.join(arguments)}".strip())
    except InputError:
        found.discard_unless_begun()
        raise
    print(f"written: {found.folder}")


def _compare(found: Run, points: Points, options: argparse.Namespace, command: str) -> None:
    from clusterformer.bench import clustering
    from clusterformer.training import wandb

    log = wandb.start(found.name, found.folder, config=vars(options)) if options.wandb else None
    settings = {name: value for name, value in vars(options).items() if name not in _PATHS}
    rows: list[Row] = []
    for num_clusters in options.n_clusters:
        measured = []
        for method in clustering.measure(
            points,
            options.methods,
            num_clusters,
            name=options.data,
            seeds=options.seeds,
            hidden=options.hidden,
            threads=options.threads,
            neural={name: getattr(options, name) for name in _NEURAL},
        ):
            measured.append(method)
            if not rows:
                print(_heads(method.rows), flush=True)
            print(_line(method.rows), flush=True)
            rows += method.rows
            clustering.write_results(found.folder, rows, command=command, settings=settings)
            if log:
                for row in method.rows:
                    log.log(row)
        if options.pictures:
            tsne = options.map == "tsne"
            try:
                clustering.draw_clusterings(
                    found.pictures, points, num_clusters, measured, tsne=tsne
                )
            except ImportError as error:
                print(f"no pictures: {error}; pip install 'clusterformer[plots]'")
    if log:
        log.finish()


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Arguments("cluster")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--root")
    parser.add_argument("--label_column")
    parser.add_number("--n_clusters", nargs="+", default=[10, 50, 100])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["neural", "kmeans"])
    parser.add_number("--seeds", default=1)
    parser.add_number("--hidden", default=256)
    parser.add_argument("--balance", type=float, default=1.0)
    parser.add_argument("--no-merge", dest="merge", action="store_false")
    parser.add_number("--n_neighbors", default=5)
    parser.add_number("--n_init", default=1)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_number("--threads")
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--map", default="tsne", choices=["tsne", "pca"])
    parser.add_argument("--no-pictures", dest="pictures", action="store_false")
    parser.add_argument("--wandb", action="store_true")
    options = parser.parse_args(arguments)
    options.seeds = list(range(options.seeds))
    return options


def _measured_names(rows: Sequence[Row]) -> list[str]:
    return [name for name in rows[0] if name not in ("method", "n_clusters", "seed")]


def _heads(rows: Sequence[Row]) -> str:
    heads = "".join(f"{name.replace('_', ' '):>15}" for name in _measured_names(rows))
    return f"{'C':>5}  {'method':<18}{heads}"


def _line(rows: Sequence[Row]) -> str:
    """Format the means over seeds, with standard deviations where there are several."""
    line = f"{rows[0]['n_clusters']:>5}  {rows[0]['method']:<18}"
    for name in _measured_names(rows):
        values = [row[name] for row in rows if row.get(name) is not None]
        if len(values) < len(rows):
            line += f"{'-':>15}"
            continue
        digits = 1 if name.endswith(("seconds", "mib")) else 4
        cell = f"{statistics.fmean(values):.{digits}f}"
        if len(values) > 1:
            cell += f" ±{statistics.stdev(values):.{digits}f}"
        line += f"{cell:>15}"
    return line
