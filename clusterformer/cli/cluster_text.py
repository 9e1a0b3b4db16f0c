"""`clusterformer cluster --text FILE`: topics of texts."""

from __future__ import annotations

import argparse
import csv
import io
import json
import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterformer.cli.arguments import Arguments, available_device, set_threads
from clusterformer.errors import InputError, reading
from clusterformer.whole_files import write_text
from clusterformer.wording import counted

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clusterformer.clustering import NeuralClustering
    from clusterformer.clustering.topics import Topic
    from clusterformer.training.runs import Run

HELP = """
usage: clusterformer cluster --text FILE [options]
       clusterformer cluster --text FILE --predict RUN

Cluster texts and name the clusters by their words. Needs clusterformer[cluster]. The run directory
gets labels.csv (id, cluster, its name and probability of each text), topics.json, index.html (map,
hierarchy, words, examples; nothing external), and the model.

  --text FILE           .jsonl, .csv, .tsv, or any other file with one text a line; also .gz
  --text_column NAME    column of the texts, by name or by number from 1 (default: found); by number
                        there is no header line: line 1 is a text
  --id_column NAME      column that names the texts, likewise (default: numbers from 0)
  --encoder FOLDER      folder of a sentence encoder of transformers or sentence-transformers, or
                        all-MiniLM-L6-v2, which clusterformer[pretrained] brings
                        (default: TF-IDF with 100 singular vectors); its vectors are kept in the
                        cache
  --max_length N        tokens of a text that the encoder reads (default: as the encoder says)
  --n_clusters auto     number of clusters; auto finds it, but one of fewer than 16 different texts
  --min_probability 0   texts whose cluster is less probable are in none, cluster -1 (with
                        --predict: default of the run)
  --stop_words english  words that neither TF-IDF nor names use: english or none
  --predict RUN         put the texts into the clusters of an earlier run; goes with the columns,
                        --min_probability, --device, --threads and --runs
  --seed 0 --hidden N --device cpu --threads N
                        further options of the clustering; --hidden adds a hidden layer
  --map tsne            method that lays out the map: tsne, or pca, which is faster
  --runs runs           parent of the run directory

examples:
  clusterformer cluster --text posts.jsonl --text_column text --encoder all-MiniLM-L6-v2
  clusterformer cluster --text new.jsonl --predict runs/cluster-posts/1
"""

LABELS, TOPICS, PAGE, MODEL = "labels.csv", "topics.json", "index.html", "model.npz"
_FITTING = ("n_clusters", "encoder", "max_length", "stop_words", "seed", "hidden", "map")
_MAPPED = 2000  # texts on the map
_LONGEST_EXAMPLE = 1000  # characters


def run(arguments: list[str]) -> None:
    """Cluster texts, or label them with the model of an earlier run."""
    options = _parse(arguments)
    set_threads(options.threads)
    texts, ids = _read(options)
    work = _cluster if options.predict is None else _predict
    with new_run(options.runs, options.text) as found:
        work(found, texts, ids, options, f"clusterformer cluster {shlex.join(arguments)}")


@contextmanager
def new_run(parent: str, source: str) -> Iterator[Run]:
    """Make a run directory for the clustering of a file, which an error removes while it is empty.

    Raises:
        InputError: for a bare ValueError, with the file.
    """
    from clusterformer.training.runs import Run

    found = Run.create(parent, f"cluster-{Path(source).name.partition('.')[0]}")
    try:
        yield found
    except BaseException as error:
        found.cancel()
        if type(error) is ValueError:
            raise InputError(f"{source}: {str(error).splitlines()[0]}") from error
        raise


def _cluster(
    found: Run, texts: list[str], ids: list[str], options: argparse.Namespace, command: str
) -> None:
    from clusterformer.clustering import NeuralClustering
    from clusterformer.clustering.parameters import MIN_PER_CLUSTER, check_parameters
    from clusterformer.clustering.topics import find_topics
    from clusterformer.data.sentence_encoder import SentenceEncoder
    from clusterformer.data.text_vectors import EncoderVectors, TfidfVectors
    from clusterformer.training.saved_clustering import predicting_command

    stop_words = None if options.stop_words == "none" else options.stop_words
    clustering = NeuralClustering(
        options.n_clusters,
        hidden=options.hidden,
        min_probability=options.min_probability or 0.0,
        random_state=options.seed,
        device=options.device,
    )
    check_parameters(clustering)  # before an encoder reads the texts
    vectorizer: Any = TfidfVectors(stop_words=stop_words)
    if options.encoder is not None:
        vectorizer = EncoderVectors(
            SentenceEncoder(options.encoder, max_length=options.max_length, device=options.device)
        )
    vectors = vectorizer.fit_transform(texts)
    _warn_of_unknown(texts, vectors, options.text)
    different = len(set(texts))  # equal ones count as one point
    if options.n_clusters == "auto" and different < 2 * MIN_PER_CLUSTER:
        _log.warning(
            f"{options.text}: {different} different texts are too few for auto, which finds one "
            f"cluster of fewer than {2 * MIN_PER_CLUSTER}; give --n_clusters"
        )
    # all columns of a sentence encoder tell topics apart, of TF-IDF the first ones
    if options.encoder is not None:
        clustering.set_params(n_components=vectors.shape[1])
    clustering.fit(vectors)
    memberships = clustering.predict_proba(vectors)
    topics = find_topics(texts, clustering.labels_, memberships, stop_words=stop_words)
    vectorizer.save(found.folder)
    clustering.save(found.folder / MODEL)
    _write_labels(found.folder, ids, clustering.labels_, memberships, topics)
    described = [topic._asdict() for topic in topics]
    write_text(found.folder / TOPICS, json.dumps(described, ensure_ascii=False, indent=1) + "\n")
    write_text(found.folder / PAGE, _page(clustering, vectors, texts, topics, options, command))
    _report(found, clustering.labels_, topics)
    print(f"label other texts: {predicting_command(found.folder)}")


def _predict(
    found: Run, texts: list[str], ids: list[str], options: argparse.Namespace, command: str
) -> None:
    from clusterformer.clustering import NeuralClustering
    from clusterformer.clustering.topics import Topic
    from clusterformer.data.text_vectors import load_vectors_of

    folder = Path(options.predict)
    if not (folder / TOPICS).is_file():
        raise InputError(f"{folder}: no {TOPICS} in it; `clusterformer cluster --text` writes one")
    with reading(folder / TOPICS, "topics of `clusterformer cluster --text`"):
        described = json.loads((folder / TOPICS).read_text(encoding="utf-8"))
        topics = [Topic(**entry) for entry in described]
    clustering = NeuralClustering.load(folder / MODEL, device=options.device)
    if options.min_probability is not None:
        clustering.set_params(min_probability=options.min_probability)
    vectors = load_vectors_of(folder, options.device).transform(texts)
    if clustering.n_clusters_ != len(topics) or vectors.shape[1] != clustering.n_features_in_:
        raise InputError(f"{folder}: {TOPICS}, {MODEL} and vectors.npz are of different runs")
    _warn_of_unknown(texts, vectors, options.text)
    labels = clustering.predict(vectors)
    _write_labels(found.folder, ids, labels, clustering.predict_proba(vectors), topics)
    _report(found, labels, topics)


def _read(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Read the texts and their names."""
    from clusterformer.cli.predict_table import Table
    from clusterformer.data.tables import is_table, read_text, text_lines

    path = options.text
    if is_table(path):
        texts = Table(path, {"text_column": options.text_column}).texts
        ids = list(map(str, range(len(texts))))
        if options.id_column is not None:
            ids = Table(path, {"id_column": options.id_column}).texts
    else:
        for name in ("text_column", "id_column"):
            if getattr(options, name) is not None:
                raise InputError(f"--{name} is for tables, .jsonl, .csv or .tsv; got {path}")
        texts = text_lines(read_text(Path(path).expanduser()))
        ids = list(map(str, range(len(texts))))
    empty = sum(not text.strip() for text in texts)
    if empty == len(texts):
        raise InputError(f"{path}: no texts in it")
    if empty:
        _log.warning(f"{path}: {empty} of {len(texts)} texts are empty, and clustered as they are")
    if len(ids) != len(texts):
        raise InputError(f"{path}: {len(ids)} ids, {len(texts)} texts; give both columns by name")
    if options.n_clusters != "auto" and options.n_clusters > len(texts):
        raise InputError(f"--n_clusters {options.n_clusters} is more than the {len(texts)} texts")
    return texts, ids


def _warn_of_unknown(texts: list[str], vectors: NDArray, path: str) -> None:
    """Warn of texts without a known word: their vectors say nothing, and still fall somewhere."""
    says_nothing = ~vectors.any(1)
    unknown = sum(bool(text.strip()) for text in np.array(texts, dtype=object)[says_nothing])
    if unknown:
        _log.warning(
            f"{path}: {unknown} of {len(texts)} texts hold no word that the vectors know; their "
            "cluster means nothing"
        )


def _write_labels(
    folder: Path, ids: list[str], labels: NDArray, memberships: NDArray, topics: list[Topic]
) -> None:
    lines = io.StringIO()
    writer = csv.writer(lines)
    writer.writerow(["id", "cluster", "name", "probability"])
    for name, cluster, largest in zip(
        ids, labels.tolist(), memberships.max(1).tolist(), strict=True
    ):
        words = "" if cluster < 0 else topics[cluster].name
        writer.writerow([name, cluster, words, f"{largest:.6f}"])
    write_text(folder / LABELS, lines.getvalue())


def _page(
    clustering: NeuralClustering,
    vectors: NDArray,
    texts: list[str],
    topics: list[Topic],
    options: argparse.Namespace,
    command: str,
) -> str:
    from clusterformer.bench.clustering import embed_in_plane
    from clusterformer.plots.topic_page import Cluster, topic_page

    shown = np.sort(np.random.default_rng(0).permutation(len(texts))[:_MAPPED])
    clusters = [
        Cluster(
            topic.name,
            topic.size,
            [word for word, _ in topic.words],
            [texts[row][:_LONGEST_EXAMPLE] for row in topic.examples],
        )
        for topic in topics
    ]
    return topic_page(
        clusters,
        embed_in_plane(vectors[shown], tsne=options.map == "tsne"),
        clustering.labels_[shown],
        clustering.linkage_,
        title=f"{len(topics)} clusters of {len(texts)} texts: {Path(options.text).name}",
        note=command,
        noise=int((clustering.labels_ < 0).sum()),
    )


def _report(found: Run, labels: NDArray, topics: list[Topic]) -> None:
    sizes = np.bincount(labels[labels >= 0], minlength=len(topics))
    count = counted(len(topics), "cluster")
    print(f"{len(labels)} texts, {count}, {int((labels < 0).sum())} in none")
    for cluster in np.argsort(-sizes, kind="stable"):
        words = " ".join(word for word, _ in topics[cluster].words[:8])
        print(f"{sizes[cluster]:>7}  {cluster:>3}  {words}")
    written = ", ".join(sorted(path.name for path in found.folder.iterdir()))
    print(f"written: {found.folder}: {written}")


def count_or_auto(value: str) -> int | str:
    """Read a number of clusters: auto, or a number from 1."""
    if value != "auto" and not (value.isdecimal() and int(value) > 0):
        raise argparse.ArgumentTypeError(f"allowed is auto, or a number from 1; got {value!r}")
    return value if value == "auto" else int(value)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Arguments()
    parser.add_argument("--text", required=True)
    parser.add_argument("--text_column")
    parser.add_argument("--id_column")
    parser.add_argument("--encoder")
    parser.add_number("--max_length", minimum=4)
    parser.add_argument("--n_clusters", type=count_or_auto, default="auto")
    parser.add_number("--min_probability", type=float, minimum=0)
    parser.add_argument("--stop_words", choices=["english", "none"], default="english")
    parser.add_argument("--predict")
    parser.add_number("--seed", minimum=0, default=0)
    parser.add_number("--hidden")
    parser.add_argument("--device", type=available_device, default="cpu")
    parser.add_number("--threads")
    parser.add_argument("--map", choices=["tsne", "pca"], default="tsne")
    parser.add_argument("--runs", default="runs")
    options = parser.parse_args(arguments)
    refuse_beside_predict(parser, options, _FITTING)
    return options


def refuse_beside_predict(
    parser: Arguments, options: argparse.Namespace, fitting: Sequence[str]
) -> None:
    """Refuse options of the fit where an earlier run's clusters are used.

    Raises:
        InputError: if there is `predict`, and one of them has another value than its default.
    """
    for name in fitting if options.predict is not None else ():
        if getattr(options, name) != parser.get_default(name):
            raise InputError(f"{name} is for new clusters, not for those of --predict")
