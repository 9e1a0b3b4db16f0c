"""Points to cluster: MNIST, digits, 20news, the user's arrays and tables, or word vectors.

Letters: P points, F features.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from clusterformer.data.corpora import read_corpus
from clusterformer.data.named_sets import SPLITS, data_folder
from clusterformer.data.point_files import PointFile, check_arrays, read_npy, read_npz, read_table
from clusterformer.data.tables import Column
from clusterformer.data.text_pieces import open_bytes
from clusterformer.data.word_vectors import load_vectors
from clusterformer.errors import InputError, MissingDataError, missing, reading

PointSet = Literal["mnist", "digits", "20news", "20news-whole"]
"""Names of sets; any other name is a file."""

_KINDS = ("npy", "npz", "csv", "tsv", "txt", "vec")
_OWN = "texts of your own: --text FILE --encoder NAME"
_TEST_EVERY = 5  # every fifth point tests, where the data have no test part
_MNIST = {"train": ("train", 60_000), "test": ("t10k", 10_000)}
_IDX_BYTES = 0x08  # third byte of an IDX file of unsigned bytes


class Points(NamedTuple):
    """Points to cluster, and their labels to measure the clusters by.

    Attributes:
        train: Training points, (P, F).
        test: Test points, likewise; the training points if nothing is labelled.
        train_labels: Their labels (P,), strings or numbers; None if there are none.
        test_labels: Labels of the test points, likewise.
        image: Height and width of a point that is an image.
        whole: All points of the file, in its order; None for those of `train`.
        ids: Name of each of them; None for their numbers from 0.
        columns: Names of the features; None if they have none.
    """

    train: NDArray
    test: NDArray
    train_labels: NDArray | None = None
    test_labels: NDArray | None = None
    image: tuple[int, int] | None = None
    whole: NDArray | None = None
    ids: Sequence[str] | None = None
    columns: Sequence[str] | None = None


def read_points(
    name: str,
    *,
    root: str | Path | None = None,
    label_column: Column | None = None,
    id_column: Column | None = None,
    columns: Sequence[Column] | None = None,
    encoder: str | None = None,
    by_name: bool = False,
) -> Points:
    """Read a named set or a file.

    A file is `.npy` (P, F); `.npz` with x and optionally y, x_test and y_test; `.csv` or `.tsv` of
    numbers, with or without a header line; or word vectors in GloVe's format (`.txt`, `.vec`); all
    but `.npz` also with `.gz`. With labels but no test part, every fifth point tests.

    Args:
        name: mnist, digits (in scikit-learn), 20news (posts without headers, signatures and
            quotes), 20news-whole, or a file.
        root: Folder of the data sets; None for the default one.
        label_column: Table: column of the labels, by name or by number from 1.
        id_column: Table: column that names the points, likewise.
        columns: Columns of numbers, likewise; None for all others.
        encoder: Posts: sentence encoder, a folder or a name; None for 100 singular vectors of
            TF-IDF.
        by_name: Table: take `columns` as names alone, also those that are digits.

    Raises:
        InputError: if something is missing or has another format.
    """
    if name in ("20news", "20news-whole"):
        return _news(root, strip=name == "20news", encoder=encoder)
    if encoder is not None:
        raise InputError(f"--encoder is for 20news and 20news-whole, got --data {name}; {_OWN}")
    if name == "mnist":
        return _mnist(data_folder(root) / "mnist")
    if name == "digits":
        return _digits()
    path, kind = _find(name)
    if kind in ("csv", "tsv"):
        found = read_table(
            path,
            "," if kind == "csv" else "\t",
            columns=columns,
            label_column=label_column,
            id_column=id_column,
            by_name=by_name,
        )
        return _split(path, check_arrays(path, found, None))
    for option, value in (("label_column", label_column), ("id_column", id_column)):
        if value is not None:
            raise InputError(f"{path}: {option} is for tables, .csv or .tsv")
    if kind == "npy":
        found = read_npy(path)
    elif kind == "npz":
        found = read_npz(path)
    else:
        loaded = load_vectors(path)
        rows, vectors = loaded.key_to_index, loaded.vectors
        found = PointFile({"x": np.asarray(vectors)}, list(rows))
    return _split(path, check_arrays(path, found, columns))


def _find(name: str) -> tuple[Path, str]:
    """Find a file, and tell its format from its name."""
    with reading(name, "the name of a file"):
        path = Path(name).expanduser()
        is_file = path.is_file()
    if not is_file:
        known = ", ".join(get_args(PointSet))
        raise InputError(f"{name}: no such file, and no named set; those are {known}")
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if kind not in _KINDS or (kind == "npz" and path.suffix == ".gz"):
        allowed = " ".join(f".{kind}" for kind in _KINDS)
        raise InputError(f"{path}: cannot tell its format; allowed is {allowed}")
    return path, kind


def _split(path: Path, found: PointFile) -> Points:
    x, y = found.arrays["x"], found.arrays.get("y")
    x_test, y_test = found.arrays.get("x_test"), found.arrays.get("y_test")
    if y is None:
        points = Points(x, x if x_test is None else x_test)
    elif x_test is not None and y_test is not None:
        points = Points(x, x_test, y, y_test)
    elif len(x) < _TEST_EVERY:
        raise InputError(
            f"{path}: {len(x)} labelled points; at least {_TEST_EVERY} are needed, one of "
            "which tests"
        )
    else:
        points = _hold_out(x, y)
    return points._replace(whole=x, ids=found.ids, columns=found.columns)


def _mnist(folder: Path) -> Points:
    images, labels = {}, {}
    for part, (prefix, count) in _MNIST.items():
        images[part] = _idx(folder, f"{prefix}-images-idx3-ubyte", (count, 28, 28))
        labels[part] = _idx(folder, f"{prefix}-labels-idx1-ubyte", (count,))
    train, test = (images[part].reshape(-1, 784).astype(np.float32) / 255 for part in _MNIST)
    return Points(train, test, labels["train"], labels["test"], (28, 28))


def _idx(folder: Path, name: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read an IDX file of bytes, also with .gz: two zeros, type, rank, sizes, values."""
    path = folder / name if (folder / name).exists() else folder / f"{name}.gz"
    try:
        with open_bytes(path) as file:
            content = file.read()
    except FileNotFoundError:
        raise MissingDataError(
            f"mnist: no file {path}; `clusterformer prepare mnist` brings it; data.root, --root or "
            "$CLUSTERFORMER_DATA is the folder of the data sets"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path}: damaged: {error}") from None
    header = bytes([0, 0, _IDX_BYTES, len(shape)]) + np.array(shape, ">i4").tobytes()
    if content[: len(header)] != header or len(content) != len(header) + prod(shape):
        raise InputError(f"{path}: expected an IDX file of {shape} bytes, as published")
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape)


def _digits() -> Points:
    digits = _sklearn("datasets").load_digits()
    x, y = digits.data.astype(np.float32), digits.target
    return _hold_out(x, y)._replace(image=(8, 8))


def _news(root: str | Path | None, *, strip: bool, encoder: str | None) -> Points:
    """Read posts: vectors of a sentence encoder, or 100 singular vectors of TF-IDF; unit length."""
    rows = {part: read_corpus("20news", part, root=root, strip=strip) for part in SPLITS}
    rows["train"] += rows.pop("valid")
    texts = {part: [row.text for row in found] for part, found in rows.items()}
    labels = {part: np.array([row.label for row in found]) for part, found in rows.items()}
    if encoder is not None:
        from clusterformer.data.sentence_encoder import SentenceEncoder

        encode = SentenceEncoder(encoder).encode_once
        return Points(
            encode(texts["train"]), encode(texts["test"]), labels["train"], labels["test"]
        )
    vectorizer = _sklearn("feature_extraction.text").TfidfVectorizer(
        min_df=5, max_df=0.5, stop_words="english", sublinear_tf=True
    )
    svd = _sklearn("decomposition").TruncatedSVD(100, random_state=0)
    normalize = _sklearn("preprocessing").normalize
    train = normalize(svd.fit_transform(vectorizer.fit_transform(texts["train"])))
    test = normalize(svd.transform(vectorizer.transform(texts["test"])))
    return Points(
        train.astype(np.float32), test.astype(np.float32), labels["train"], labels["test"]
    )


def _sklearn(module: str) -> Any:
    from importlib import import_module

    try:
        return import_module(f"sklearn.{module}")
    except ImportError:
        raise missing(f"sklearn.{module} needs scikit-learn", "cluster") from None


def _hold_out(x: NDArray, y: NDArray) -> Points:
    tests = np.arange(len(x)) % _TEST_EVERY == _TEST_EVERY - 1
    return Points(x[~tests], x[tests], y[~tests], y[tests])
