"""Quality, time and memory of clustering methods on the same points."""

from __future__ import annotations

import csv
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from clusterformer.bench.report import Row, write_report
from clusterformer.clustering.measures import measures
from clusterformer.data.points import Points
from clusterformer.errors import InputError
from clusterformer.training.clustering_methods import make_clustering
from clusterformer.training.memory import release_freed, reset_peak, resident
from clusterformer.whole_files import replacing

SHOWN = 1500
"""Maximum number of points on a map."""

TSNE_MINIMUM = 30
"""Points that t-SNE needs for its perplexity; fewer are drawn by principal components."""


_HEADROOM = 1e3  # by which distances may exceed a value


class Measured(NamedTuple):
    """One method over all seeds.

    Attributes:
        method: Its name.
        rows: One row for each seed.
        clustering: The fitted estimator of the first seed.
    """

    method: str
    rows: list[Row]
    clustering: Any


def measure(
    points: Points,
    methods: Sequence[str],
    num_clusters: int | Literal["auto"],
    *,
    name: str = "points",
    seeds: Sequence[int] = (0,),
    hidden: int = 256,
    threads: int | None = None,
    neural: Mapping[str, Any] | None = None,
) -> Iterator[Measured]:
    """Fit each method with each seed, and measure it.

    Args:
        points: Training and test points, with labels where there are any.
        methods: Names among `clustering_methods.METHODS`.
        num_clusters: C, or "auto".
        name: Name of the points, for messages.
        seeds: Seeds of the random numbers.
        hidden: Units of the hidden layer of neural-hidden and neural-augmented.
        threads: CPU threads of scikit-learn; None: all cores.
        neural: Further options of NeuralClustering.

    Yields:
        The rows of each method: the number of clusters that are not empty, measures on the test
        points, time of the fit, and growth of the resident memory within it.

    Raises:
        InputError: if a method refuses the points.
    """
    options = {"hidden": hidden, "image": points.image, **(neural or {})}
    for method in methods:
        rows, clusterings = [], []
        for seed in seeds:
            clustering = make_clustering(method, num_clusters, seed, **options)
            with _one_line(name):
                cost = _fit(clustering, points, threads)
                quality = measures(
                    clustering.labels_,
                    points.train_labels,
                    clustering.predict(points.test),
                    points.test_labels,
                    points.test,
                )
            labels = {"method": method, "n_clusters": num_clusters, "seed": seed}
            found = {"clusters": len(np.unique(clustering.labels_))}
            rows.append({**labels, **found, **quality, **cost})
            clusterings.append(clustering)
        yield Measured(method, rows, clusterings[0])


def check(
    points: Points,
    methods: Sequence[str],
    num_clusters: Sequence[int | Literal["auto"]],
    *,
    name: str = "points",
    hidden: int = 256,
    neural: Mapping[str, Any] | None = None,
) -> None:
    """Check that `measure` can begin with these options, before anything is written.

    Raises:
        InputError: for the first option that is not allowed or needs too much memory.
    """
    dtype = np.result_type(points.train, np.float32)
    largest = max(float(points.train.max()), -float(points.train.min()))
    if largest > np.sqrt(np.finfo(dtype).max) / _HEADROOM:
        raise InputError(
            f"{name}: values up to {largest:.1e}; divide the data: allowed are those whose squares "
            f"fit into {dtype}"
        )
    for count, method in itertools.product(num_clusters, methods):
        if count != "auto" and count > len(points.train):
            raise InputError(f"--n_clusters {count} is more than the {len(points.train)} points")
        options = {"hidden": hidden, "image": points.image, **(neural or {})}
        clustering = make_clustering(method, count, 0, **options)
        if method.startswith("neural"):
            from clusterformer.clustering import parameters

            with _one_line(name):
                parameters.check_parameters(clustering)
                parameters.check_memory(clustering, len(points.train))


@contextmanager
def _one_line(name: str) -> Iterator[None]:
    """Turn the ValueError of an estimator into an InputError, without the advice below it."""
    try:
        yield
    except ValueError as error:
        raise InputError(f"{name}: {str(error).splitlines()[0]}") from error


def _fit(clustering: Any, points: Points, threads: int | None) -> Row:
    from threadpoolctl import threadpool_limits

    release_freed()  # a fit before this one would lend it memory, which then does not grow
    before = resident("VmRSS") if reset_peak() else None
    limits = threadpool_limits(threads) if threads else nullcontext()
    begun, worked = time.perf_counter(), time.process_time()
    with limits:
        clustering.fit(points.train)
    return {
        "seconds": time.perf_counter() - begun,
        "cpu_seconds": time.process_time() - worked,
        "peak_mib": None if before is None else (resident("VmHWM") or before) - before,
    }


def write_results(folder: Path, rows: Sequence[Row], **sections: Any) -> None:
    """Write results.csv and results.json.

    Args:
        folder: Run directory.
        rows: All rows so far.
        sections: Further entries of results.json.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    with (
        replacing(folder / "results.csv") as partial,
        partial.open("w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    write_report(folder / "results.json", rows, **sections)


def draw_clusterings(
    folder: Path,
    points: Points,
    num_clusters: int | Literal["auto"],
    found: Sequence[Measured],
    *,
    tsne: bool,
) -> None:
    """Draw a map of the points, the sizes of clusters and, of pictures, the centroids.

    Args:
        folder: Directory of the pictures.
        points: The points that were clustered.
        num_clusters: C, or "auto".
        found: Methods to compare, all with this number of clusters.
        tsne: Whether t-SNE lays out the map, and not principal components.

    Raises:
        ImportError: if matplotlib is missing.
    """
    from clusterformer.plots import centroid_images, cluster_size_curves, point_maps

    labels = {measured.method: measured.clustering.labels_ for measured in found}
    least = 0 if num_clusters == "auto" else num_clusters
    what = "clusters, number found" if num_clusters == "auto" else f"{num_clusters} clusters"
    sizes = {name: np.bincount(some, minlength=least) for name, some in labels.items()}
    path = folder / f"sizes-{num_clusters}.png"
    folder.mkdir(exist_ok=True)
    cluster_size_curves(sizes, path, title=f"Sizes of {what}")
    shown = np.sort(np.random.default_rng(0).permutation(len(points.train))[:SHOWN])
    sample = np.asarray(points.train[shown])
    if min(sample.shape) > 1:
        tsne = tsne and len(sample) > TSNE_MINIMUM
        plane = embed_in_plane(sample, tsne=tsne)
        title = f"{what}, {'t-SNE' if tsne else 'principal components'}"
        path = folder / f"map-{num_clusters}.png"
        point_maps(
            plane, {name: some[shown] for name, some in labels.items()}, path,
            title=title,
        )  # fmt: skip
    if points.image is None:
        return
    for method, _, clustering in found:
        path = folder / f"centroids-{method}-{num_clusters}.png"
        title = f"{method}, {what}"
        centroid_images(clustering.cluster_centers_, points.image, path, title=title)


def embed_in_plane(points: Any, *, tsne: bool) -> Any:
    """Embed points (N, D) in a plane, (N, 2), by t-SNE if there are enough, else by components."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if min(points.shape) < 2 or (points == points[0]).all():  # t-SNE of equal points crashes
        return np.pad(points[:, :1], ((0, 0), (0, 1)))
    # neither method depends on the unit, but both square: a power of two, which changes no digits
    points = points / 2.0 ** int(np.frexp(np.abs(points).max())[1])
    tsne = tsne and len(points) > TSNE_MINIMUM
    reduce = TSNE(random_state=0) if tsne else PCA(2, random_state=0)
    return reduce.fit_transform(points)
