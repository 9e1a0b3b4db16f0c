"""Points to cluster: MNIST, digits, 20news, the user's arrays and tables, or word vectors.

Letters: P points, F features.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from clusterformer.data.corpora import read_corpus
from clusterformer.data.named_sets import data_folder
from clusterformer.data.word_vectors import load_vectors
from clusterformer.errors import InputError

PointSet = Literal["mnist", "digits", "20news"]
"""Names of sets; any other name is a file."""

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
    """

    train: NDArray
    test: NDArray
    train_labels: NDArray | None = None
    test_labels: NDArray | None = None
    image: tuple[int, int] | None = None


def read_points(
    name: str, *, root: str | Path | None = None, label_column: str | int | None = None
) -> Points:
    """Read a named set or a file.

    A file is `.npy` (P, F); `.npz` with x and optionally y, x_test and y_test; `.csv` or `.tsv` of
    numbers, with or without a header line; or word vectors in GloVe's format (`.txt`, `.vec`; also
    with `.gz`). With labels but no test part, every fifth point tests.

    Args:
        name: mnist, digits (in scikit-learn), 20news (TF-IDF, 100 singular vectors), or a file.
        root: Folder of the data sets; None for the default one.
        label_column: Table: column of the labels, by name or by number from 1.

    Raises:
        InputError: if something is missing or has another format.
    """
    if name == "mnist":
        return _mnist(data_folder(root) / "mnist")
    if name == "digits":
        return _digits()
    if name == "20news":
        return _news(root)
    path = Path(name).expanduser()
    if not path.is_file():
        known = ", ".join(get_args(PointSet))
        raise InputError(f"{name}: no such file, and no named set; those are {known}")
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if kind == "npy":
        return _checked(path, {"x": _load_arrays(path)})
    if kind == "npz":
        return _checked(path, _load_arrays(path))
    if kind in ("csv", "tsv"):
        return _checked(path, _table(path, "," if kind == "csv" else "\t", label_column))
    if kind in ("txt", "vec"):
        return _checked(path, {"x": load_vectors(path).vectors})
    raise InputError(f"{path}: cannot tell its format; allowed is .npy .npz .csv .tsv .txt .vec")


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
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror or error}; give the folder that holds mnist/ as data.root, "
            "--root or $CLUSTERFORMER_DATA"
        ) from None
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


def _news(root: str | Path | None) -> Points:
    """Read 20news, stripped: 100 singular vectors of TF-IDF, scaled to unit length."""
    rows = {part: read_corpus("20news", part, root=root, strip=True) for part in ("valid", "test")}
    rows["train"] = read_corpus("20news", "train", root=root, strip=True) + rows.pop("valid")
    texts = {part: [row.text for row in found] for part, found in rows.items()}
    labels = {part: np.array([row.label for row in found]) for part, found in rows.items()}
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
        raise InputError("this needs scikit-learn: pip install 'clusterformer[cluster]'") from None


def _load_arrays(path: Path) -> Any:
    try:
        loaded = np.load(path, mmap_mode="r" if path.suffix == ".npy" else None)
        return loaded if path.suffix == ".npy" else dict(loaded)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: not a NumPy file: {error}") from None


def _table(path: Path, delimiter: str, label_column: str | int | None) -> dict[str, NDArray]:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file, delimiter=delimiter) if row]
    if not rows:
        raise InputError(f"{path}: empty")
    label = _label_index(path, rows[0], label_column)
    numbers: list[list[float]] = []
    labels: list[str] = []
    for line, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise InputError(f"{path}:{line}: {len(row)} columns, line 1 has {len(rows[0])}")
        try:
            found = [float(field) for index, field in enumerate(row) if index != label]
        except ValueError as error:
            if line == 1:  # the header
                continue
            raise InputError(f"{path}:{line}: {error}; allowed are numbers") from None
        numbers.append(found)
        if label is not None:
            labels.append(row[label])
    table = {"x": np.array(numbers, dtype=np.float32).reshape(len(numbers), -1)}
    return table if label is None else table | {"y": np.array(labels)}


def _label_index(path: Path, first: list[str], column: str | int | None) -> int | None:
    if column is None:
        return None
    if str(column).isdecimal():
        if not 1 <= int(column) <= len(first):
            raise InputError(f"{path}:1: no column {column}, there are {len(first)}")
        return int(column) - 1
    if column not in first:
        raise InputError(f"{path}:1: no column {column!r}, the header line has {first}")
    return first.index(str(column))


def _checked(path: Path, found: dict[str, NDArray]) -> Points:
    if "x" not in found:
        raise InputError(f"{path}: no array x in it, there is {', '.join(found)}")
    for name, array in found.items():
        if name.startswith("x") and array.ndim != 2:
            raise InputError(
                f"{path}: {name} has shape {array.shape}, allowed is (points, columns)"
            )
        if name.startswith("x") and not np.issubdtype(array.dtype, np.number):
            raise InputError(f"{path}: {name} holds {array.dtype}, allowed are numbers")
        points = name.replace("y", "x", 1)
        if points in found and len(array) != len(found[points]):
            raise InputError(f"{path}: {len(found[points])} {points}, but {len(array)} {name}")
    x, y = found["x"], found.get("y")
    if y is None:
        return Points(x, found.get("x_test", x))
    if "x_test" in found and "y_test" in found:
        return Points(x, found["x_test"], y, found["y_test"])
    return _hold_out(x, y)


def _hold_out(x: NDArray, y: NDArray) -> Points:
    tests = np.arange(len(x)) % _TEST_EVERY == _TEST_EVERY - 1
    return Points(x[~tests], x[tests], y[~tests], y[tests])
