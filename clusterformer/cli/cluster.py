"""`clusterformer cluster`: cluster any points, and set methods side by side."""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterformer.bench.cluster_methods import METHODS, make
from clusterformer.cli.arguments import Arguments
from clusterformer.errors import InputError

if TYPE_CHECKING:
    from clusterformer.data.points import Points

INDENT = "\n" + 24 * " "
HELP = f"""
usage: clusterformer cluster [options]

Cluster points by several methods with several seeds, and compare. Needs clusterformer[cluster].

  --data digits         digits (comes with scikit-learn), mnist, 20news, or a file: .npy, .npz (x,
                        and where there are y, x_test, y_test), .csv or .tsv of numbers, .txt or
                        .vec of word vectors in GloVe's format
  --root DIR            folder of the named sets (default: $CLUSTERFORMER_DATA)
  --label_column NAME   column of a table that holds labels, by name or by number from 1
  --n_clusters 10 50 100
                        numbers of clusters, each tried
  --methods neural kmeans
                        {INDENT.join(f"{name}: {what}" for name, what in METHODS.items())}
  --seeds 1             repetitions, with seeds 0, 1, ...
  --hidden 256          units of the hidden layer of neural-hidden and neural-augmented
  --balance 1 --no-merge --n_neighbors 5 --n_init 1 --device cpu
                        further options of the neural methods, those of NeuralClustering
  --threads N           of the processor, for all methods (default: all cores)
  --runs runs           parent of the run folder, which gets results.csv, results.json, labels and
                        pictures
  --map tsne            how points come to lie in the plane: tsne, or pca, which is quick
  --no-pictures         draw nothing
  --wandb               log every row to Weights & Biases too

Where there are labels, accuracy names each cluster by its majority among training points and is
measured on test points. Time is that of the fit, memory the growth of the process within it.

examples:
  clusterformer cluster
  clusterformer cluster --data mnist --n_clusters 10 50 100 200 300 --seeds 5 \\
      --methods neural neural-hidden kmeans minibatch-kmeans som
  clusterformer cluster --data vectors.npy --n_clusters 100
"""

_NEURAL = ("balance", "merge", "n_neighbors", "n_init", "device")
_PLACES = ("root", "runs")  # options that say nothing of the results
_SHOWN = 1500  # points of the map


def run(arguments: list[str]) -> None:
    """Cluster, print the table, write results and pictures."""
    import torch

    from clusterformer.data.points import read_points
    from clusterformer.training.runs import Run
    from clusterformer.training.wandb import start

    options = _parse(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    points = read_points(options.data, root=options.root, label_column=options.label_column)
    most = max(options.n_clusters)
    if most > len(points.train):
        raise InputError(f"--n_clusters {most} is more than the {len(points.train)} points")
    folder = Run.create(options.runs, f"cluster-{Path(options.data).name.partition('.')[0]}")
    command = f"clusterformer cluster {shlex.join(arguments)}".strip()
    rows: list[dict[str, Any]] = []
    count, width = points.train.shape
    print(f"{count} points, {width} columns; run folder: {folder.folder}", flush=True)
    log = start(folder.name, folder.folder, config=vars(options)) if options.wandb else None
    for count in options.n_clusters:
        for method in options.methods:
            try:
                found = [_measure(method, count, seed, points, options) for seed in options.seeds]
            except InputError:
                folder.discard_unless_begun()
                raise
            rows += [row for row, _ in found]
            _show([row for row, _ in found], first=len(rows) == len(found))
            _write(folder.folder, command, options, rows)
            if log:
                for row, _ in found:
                    log.log(row)
            if method == options.methods[0]:
                clusterings = {}
            clusterings[method] = found[0][1]
        if options.pictures:
            _draw(folder.pictures, points, count, clusterings, options.map)
    if log:
        log.finish()
    print(f"written: {folder.folder}")


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Arguments("cluster")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--root")
    parser.add_argument("--label_column")
    parser.add_argument("--n_clusters", type=int, nargs="+", default=[10, 50, 100])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["neural", "kmeans"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--balance", type=float, default=1.0)
    parser.add_argument("--no-merge", dest="merge", action="store_false")
    parser.add_argument("--n_neighbors", type=int, default=5)
    parser.add_argument("--n_init", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--map", default="tsne", choices=["tsne", "pca"])
    parser.add_argument("--no-pictures", dest="pictures", action="store_false")
    parser.add_argument("--wandb", action="store_true")
    options = parser.parse_args(arguments)
    for name in ("n_clusters", "seeds", "hidden", "threads", "n_neighbors", "n_init"):
        value = getattr(options, name)
        least = min(value) if isinstance(value, list) else value
        if least is not None and least < 1:
            raise InputError(f"--{name} must be at least 1, got {least}")
    options.seeds = list(range(options.seeds))
    return options


def _measure(
    method: str, count: int, seed: int, points: Points, options: argparse.Namespace
) -> tuple[dict[str, Any], Any]:
    """One row of results, and the trained clustering."""
    from contextlib import nullcontext

    from threadpoolctl import threadpool_limits

    from clusterformer.clustering.measures import measures
    from clusterformer.training.memory import reset_peak, resident

    neural = {name: getattr(options, name) for name in _NEURAL}
    clustering = make(method, count, seed, hidden=options.hidden, image=points.image, **neural)
    held = resident("VmRSS") if reset_peak() else None
    limits = threadpool_limits(options.threads) if options.threads else nullcontext()
    begun, worked = time.perf_counter(), time.process_time()
    try:
        with limits:
            clustering.fit(points.train)
    except ValueError as error:
        what = str(error).splitlines()[0]  # scikit-learn's advice comes below
        raise InputError(f"{options.data}: {what}") from error
    cost = {
        "seconds": time.perf_counter() - begun,
        "cpu_seconds": time.process_time() - worked,
        "peak_mib": None if held is None else (resident("VmHWM") or held) - held,
    }
    found = measures(
        clustering.labels_,
        points.train_labels,
        clustering.predict(points.test),
        points.test_labels,
        points.test,
    )
    return {"method": method, "n_clusters": count, "seed": seed, **found, **cost}, clustering


def _show(rows: list[dict[str, Any]], *, first: bool) -> None:
    """A line of means, with standard deviations where there are several seeds."""
    names = [name for name in rows[0] if name not in ("method", "n_clusters", "seed")]
    if first:
        heads = "".join(f"{name.replace('_', ' '):>15}" for name in names)
        print(f"{'C':>5}  {'method':<18}{heads}")
    line = f"{rows[0]['n_clusters']:>5}  {rows[0]['method']:<18}"
    for name in names:
        values = [row[name] for row in rows if row.get(name) is not None]
        if len(values) < len(rows):
            line += f"{'-':>15}"
            continue
        digits = 1 if name.endswith(("seconds", "mib")) else 4
        cell = f"{statistics.fmean(values):.{digits}f}"
        if len(values) > 1:
            cell += f" ±{statistics.stdev(values):.{digits}f}"
        line += f"{cell:>15}"
    print(line, flush=True)


def _write(
    folder: Path, command: str, options: argparse.Namespace, rows: list[dict[str, Any]]
) -> None:
    from clusterformer.training.environment import describe_environment

    names = list(dict.fromkeys(name for row in rows for name in row))
    with (folder / "results.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    environment = describe_environment()
    del environment["folder"]  # a report travels; where it was made is nobody's business
    settings = {name: value for name, value in vars(options).items() if name not in _PLACES}
    report = {"command": command, "environment": environment, "settings": settings, "rows": rows}
    (folder / "results.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _draw(
    pictures: Path, points: Points, count: int, clusterings: dict[str, Any], plane: str
) -> None:
    import numpy as np
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    try:
        from clusterformer.plots import centroid_images, cluster_sizes, point_maps
    except ImportError as error:
        print(f"no pictures: {error}; pip install 'clusterformer[plots]'")
        return
    pictures.mkdir(exist_ok=True)
    shown = np.sort(np.random.default_rng(0).permutation(len(points.train))[:_SHOWN])
    sample = np.asarray(points.train[shown])
    if min(sample.shape) > 1:
        many = plane == "tsne" and len(sample) > 30  # t-SNE's perplexity
        reduce = TSNE(random_state=0) if many else PCA(2, random_state=0)
        labels = {name: found.labels_[shown] for name, found in clusterings.items()}
        title = f"{count} clusters, {'t-SNE' if many else 'principal components'}"
        point_maps(reduce.fit_transform(sample), labels, pictures / f"map-{count}.png", title=title)
    sizes = {
        name: np.bincount(found.labels_, minlength=count) for name, found in clusterings.items()
    }
    cluster_sizes(sizes, pictures / f"sizes-{count}.png", title=f"Sizes of {count} clusters")
    if not points.image:
        return
    for name, found in clusterings.items():
        path = pictures / f"centroids-{name}-{count}.png"
        title = f"{name}, {count} clusters"
        centroid_images(found.cluster_centers_, points.image, path, title=title)
