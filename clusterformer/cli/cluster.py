"""`clusterformer cluster`: cluster any points, and compare methods."""

from __future__ import annotations

import argparse
import shlex
import statistics
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterformer.cli import cluster_text
from clusterformer.cli.arguments import Arguments, available_device, set_threads
from clusterformer.errors import InputError
from clusterformer.training.clustering_methods import COUNTING, METHODS

if TYPE_CHECKING:
    from clusterformer.bench.report import Row
    from clusterformer.data.points import Points
    from clusterformer.training.runs import Run

INDENT = "\n" + 24 * " "
HELP = f"""
usage: clusterformer cluster [options]
       clusterformer cluster --predict MODEL --data FILE
       clusterformer cluster --text --help         for texts

Cluster points by several methods with several seeds, and compare. Needs clusterformer[cluster].
Each method and number of clusters gets a directory, such as neural-10: labels.csv (id, cluster,
probability of each point), memberships.npy, and model.npz, or centers.npy of other methods.

  --data digits         digits (comes with scikit-learn), mnist, 20news (posts without headers,
                        signatures and quotes), 20news-whole, or a file: .npy, .npz (x, and
                        optionally y, x_test and y_test), .csv or .tsv of numbers, .txt or .vec of
                        word vectors in GloVe's format
  --encoder NAME        20news: sentence encoder, a folder or all-MiniLM-L6-v2 (default: TF-IDF, 100
                        singular vectors)
  --root DIR            directory of the named sets (default: $CLUSTERFORMER_DATA)
  --columns NAME ...    columns to cluster by, by name or by number from 1 (default: all others)
  --id_column NAME      column of a table that names the points, likewise (default: a first column
                        without a name, else numbers from 0)
  --label_column NAME   column of a table that holds labels, likewise
  --predict MODEL       label the points with a model of an earlier run: model.npz or its directory
  --n_clusters 10 50 100
                        numbers of clusters, each tried; by default those that the points allow.
                        auto finds it ({", ".join(COUNTING)})
  --methods neural kmeans
                        (default; with --n_clusters auto: neural)
                        {INDENT.join(f"{name}: {what}" for name, what in METHODS.items())}
  --seeds 1             repetitions, with seeds 0, 1, ...
  --hidden 256          units of the hidden layer of neural-hidden and neural-augmented
  --balance 1 --no-merge --n_neighbors 5 --n_components 64 --n_init 1 --device cpu
                        further options of the neural methods, those of NeuralClustering
  --merge_by_information
                        a recipe for few clusters of kinds that are separated, such as images
  --threads N           CPU threads of all methods (default: all cores)
  --runs runs           parent of the run directory, which gets results.csv, results.json,
                        pictures and the directories of the clusters
  --map tsne            method that lays out the map: tsne, or pca, which is faster
  --no-pictures         draw nothing
  --wandb               log every row to Weights & Biases too

Where there are labels, accuracy names each cluster by its majority label among training points and
is measured on test points. Time is that of the fit, memory the growth of the process during it.

examples:
  clusterformer cluster
  clusterformer cluster --data mnist --n_clusters 10 50 100 200 300 --seeds 5 \\
      --methods neural neural-hidden kmeans minibatch-kmeans som
  clusterformer cluster --data points.csv --id_column name --methods neural --n_clusters 20
  clusterformer cluster --predict runs/cluster-points/1/neural-20 --data new.csv --id_column name

In Python: NeuralClustering.load("runs/cluster-points/1/neural-20/model.npz").predict(points)
"""


def help_for(arguments: list[str]) -> str:
    """Return the help of clustering texts, or of clustering points."""
    return cluster_text.HELP if _of_texts(arguments) else HELP


def _of_texts(arguments: list[str]) -> bool:
    return any(argument.partition("=")[0] == "--text" for argument in arguments)


_NEURAL = ("balance", "merge", "n_neighbors", "n_components", "n_init", "device")
_USUAL = [10, 50, 100]  # numbers of clusters
_LIMITS = {"seeds": 1000, "threads": 1024}
_FITTING = (
    "n_clusters", "methods", "seeds", "hidden", "balance", "merge", "n_neighbors", "n_components",
    "n_init", "map", "wandb",
)  # fmt: skip
_PATHS = ("root", "runs")  # options that do not change the results


def run(arguments: list[str]) -> None:
    """Cluster, print the table, write clusters, results and pictures."""
    from clusterformer.cli.logs import show_notes

    show_notes()
    # of fewer different points than clusters; the output counts the clusters that there are
    warnings.filterwarnings("ignore", "Number of distinct clusters")
    if _of_texts(arguments):
        cluster_text.run(arguments)
        return
    options = _parse(arguments)
    set_threads(options.threads)
    if options.predict is not None:
        _predict(options)
        return
    from clusterformer.bench import clustering

    points = _read(options)
    number, width = points.train.shape
    if options.n_clusters is None:
        options.n_clusters = [count for count in _USUAL if count <= number]
        if not options.n_clusters:
            raise InputError(
                f"{options.data}: {number} points; choose --n_clusters, at most {number}"
            )
    if options.methods is None:
        options.methods = ["neural"] if "auto" in options.n_clusters else ["neural", "kmeans"]
    clustering.check(
        points,
        options.methods,
        options.n_clusters,
        name=options.data,
        hidden=options.hidden,
        neural=_neural(options),
    )
    with cluster_text.new_run(options.runs, options.data) as found:
        print(f"{number} points, {width} columns; run directory: {found.folder}", flush=True)
        _compare(found, points, options, f"clusterformer cluster {shlex.join(arguments)}".strip())


def _read(options: argparse.Namespace, names: Sequence[str] | None = None) -> Points:
    from clusterformer.data.points import read_points

    return read_points(
        options.data,
        root=options.root,
        label_column=options.label_column,
        id_column=options.id_column,
        columns=options.columns or names,
        encoder=options.encoder,
        by_name=options.columns is None and names is not None,
    )


def _predict(options: argparse.Namespace) -> None:
    """Label points with a model of an earlier run."""
    from clusterformer.bench.cluster_files import write_labels
    from clusterformer.clustering import NeuralClustering
    from clusterformer.clustering.saving import find_model

    path = find_model(options.predict)
    model = NeuralClustering.load(path, device=options.device)
    names = model.__dict__.pop("feature_names_in_", None)
    table = Path(options.data).name.removesuffix(".gz").endswith((".csv", ".tsv"))
    points = _read(options, None if names is None or not table else list(names))
    whole = points.train if points.whole is None else points.whole
    if whole.shape[1] != model.n_features_in_:
        raise InputError(
            f"{options.data}: {whole.shape[1]} columns, {path} has {model.n_features_in_}; "
            "select them with --columns"
        )
    with cluster_text.new_run(options.runs, options.data) as found:
        written = write_labels(found.folder, model, whole, points.ids)
    print(f"{len(whole)} points, {model.n_clusters_} clusters")
    print(f"written: {found.folder}: {', '.join(path.name for path in written)}")


def _neural(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in _NEURAL}


def _compare(found: Run, points: Points, options: argparse.Namespace, command: str) -> None:
    from clusterformer.bench import clustering
    from clusterformer.bench.cluster_files import write_labels, write_model
    from clusterformer.clustering.saving import MODEL
    from clusterformer.training import wandb
    from clusterformer.training.saved_clustering import predicting_command

    log = wandb.start(found.name, found.folder, config=vars(options)) if options.wandb else None
    settings = {name: value for name, value in vars(options).items() if name not in _PATHS}
    whole = points.train if points.whole is None else points.whole
    rows: list[Row] = []
    written: list[list[Path]] = []
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
            neural=_neural(options),
        ):
            measured.append(method)
            if not rows:
                names = _measured_names(method.rows[0])
                print(_heads(names), flush=True)
            print(_line(method.rows, names), flush=True)
            rows += method.rows
            folder = found.folder / f"{method.method}-{num_clusters}"
            written.append(write_labels(folder, method.clustering, whole, points.ids))
            written[-1].append(write_model(folder, method.clustering, points.columns))
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
    print(f"written: {found.folder}: results.csv, results.json{', pictures' * options.pictures}")
    for paths in written:
        print(f"  {paths[0].parent}: {', '.join(path.name for path in paths)}")
    models = [paths[-1].parent for paths in written if paths[-1].name == MODEL]
    if models:
        ids = f" --id_column {shlex.quote(options.id_column)}" if options.id_column else ""
        print(f"label other points: {predicting_command(models[0])}{ids}")


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Arguments()
    parser.add_argument("--data", default="digits")
    parser.add_argument("--root")
    parser.add_argument("--columns", nargs="+")
    parser.add_argument("--id_column")
    parser.add_argument("--label_column")
    parser.add_argument("--encoder")
    parser.add_argument("--predict")
    parser.add_argument("--n_clusters", nargs="+", type=cluster_text.count_or_auto)
    parser.add_argument("--methods", nargs="+", choices=METHODS)
    parser.add_number("--seeds", default=1)
    parser.add_number("--hidden", default=256)
    parser.add_argument("--balance", type=float, default=1.0)
    parser.add_argument("--no-merge", dest="merge", action="store_false")
    parser.add_argument(
        "--merge_by_information", dest="merge", action="store_const", const="information"
    )
    parser.add_number("--n_neighbors", default=5)
    parser.add_number("--n_components", default=64)
    parser.add_number("--n_init", default=1)
    parser.add_argument("--device", type=available_device, default="cpu")
    parser.add_number("--threads")
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--map", default="tsne", choices=["tsne", "pca"])
    parser.add_argument("--no-pictures", dest="pictures", action="store_false")
    parser.add_argument("--wandb", action="store_true")
    options = parser.parse_args(arguments)
    for name, limit in _LIMITS.items():
        if (getattr(options, name) or 0) > limit:
            raise InputError(f"--{name} must be at most {limit}, got {getattr(options, name)}")
    cluster_text.refuse_beside_predict(parser, options, _FITTING)
    options.seeds = list(range(options.seeds))
    return options


def _measured_names(row: Row) -> list[str]:
    """List the columns of the table; a silhouette is one, though a single cluster has none."""
    names = [name for name in row if name not in ("method", "n_clusters", "seed")]
    if "silhouette" not in names:
        names.insert(names.index("seconds"), "silhouette")
    return names


def _heads(names: Sequence[str]) -> str:
    heads = "".join(f"{name.replace('_', ' '):>15}" for name in names)
    return f"{'C':>5}  {'method':<18}{heads}"


def _line(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Format the means over seeds, with standard deviations where there are several."""
    line = f"{rows[0]['n_clusters']:>5}  {rows[0]['method']:<18}"
    for name in names:
        values = [row[name] for row in rows if row.get(name) is not None]
        if len(values) < len(rows):
            line += f"{'-':>15}"
            continue
        digits = 1 if name.endswith(("clusters", "seconds", "mib")) else 4
        cell = f"{statistics.fmean(values):.{digits}f}"
        if len(values) > 1:
            cell += f" ±{statistics.stdev(values):.{digits}f}"
        line += f"{cell:>15}"
    return line
