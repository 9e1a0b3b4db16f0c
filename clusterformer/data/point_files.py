"""Files of points: NumPy arrays and tables of numbers, checked as they are read.

Letters: P points, F features.
"""

from __future__ import annotations

import csv
import logging
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clusterformer.data.tables import Column
from clusterformer.data.text_pieces import open_bytes
from clusterformer.errors import InputError, Position, reading

_ARRAYS = ("x", "y", "x_test", "y_test")
_LARGEST = float(np.finfo(np.float32).max)
_ROWS = 2**16  # rows whose numbers are checked at a time
_SHOWN = 40  # characters of a field in a message
_DELIMITERS = ",;\t|"

_log = logging.getLogger(__name__)


class PointFile(NamedTuple):
    """Contents of a file of points.

    Attributes:
        arrays: x (P, F) of numbers; optionally y (P,), x_test and y_test.
        ids: Name of each point; None if they have none.
        columns: Name of each feature, from the header line; None without one.
    """

    arrays: dict[str, NDArray]
    ids: list[str] | None = None
    columns: list[str] | None = None


def read_npy(path: Path) -> PointFile:
    """Map an `.npy` file into memory; unpack an `.npy.gz`."""
    with reading(path, "a NumPy file"), _refusing_objects(path):
        if path.suffix == ".gz":
            with open_bytes(path) as file:
                return PointFile({"x": np.lib.format.read_array(file, allow_pickle=False)})
        return PointFile({"x": np.lib.format.open_memmap(path, mode="r")})


def read_npz(path: Path) -> PointFile:
    """Read the arrays x, y, x_test and y_test of an `.npz` file, those that there are."""
    with reading(path, "a NumPy archive"), np.load(path, allow_pickle=False) as file:
        if "x" not in file.files:
            raise InputError(f"{path}: no array x in it, there is {', '.join(file.files)[:200]}")
        arrays = {}
        for name in filter(file.files.__contains__, _ARRAYS):
            with _refusing_objects(path, name):
                arrays[name] = file[name]
        return PointFile(arrays)


@contextmanager
def _refusing_objects(path: Path, name: str = "x") -> Iterator[None]:
    """Say what is wrong with an array of Python's objects; reading one could run any code."""
    try:
        yield
    except ValueError as error:
        if not any(words in str(error) for words in ("Object arrays", "Python objects")):
            raise
        allowed, kind = ("numbers", "float") if name.startswith("x") else ("strings", "str")
        told = f"{path}: {name} holds Python objects, allowed are {allowed}"
        raise InputError(f"{told}: save {name}.astype({kind})") from error


def check_arrays(path: Path, found: PointFile, columns: Sequence[Column] | None) -> PointFile:
    """Check shapes and numbers of arrays, and select columns by their numbers.

    Raises:
        InputError: with the array, what was found, and what is allowed.
    """
    arrays = dict(found.arrays)
    for name in ("x", "x_test"):
        if name in arrays:
            arrays[name] = _check_points(path, name, arrays[name], columns)
    for points, labels in (("x", "y"), ("x_test", "y_test")):
        if labels in arrays and arrays[labels].ndim != 1:
            shape = arrays[labels].shape
            raise InputError(f"{path}: {labels} has shape {shape}, allowed is (points,)")
        if labels in arrays and arrays[labels].dtype.kind not in "biufUS":
            kind = arrays[labels].dtype
            raise InputError(f"{path}: {labels} holds {kind}, allowed are numbers or strings")
        if labels in arrays and len(arrays.get(points, ())) != len(arrays[labels]):
            raise InputError(
                f"{path}: {len(arrays.get(points, ()))} {points}, but {len(arrays[labels])} "
                f"{labels}"
            )
    if "x_test" in arrays and ("y" in arrays) != ("y_test" in arrays):
        has, lacks = ("y", "y_test") if "y" in arrays else ("y_test", "y")
        raise InputError(f"{path}: x_test and {has}, but no {lacks}; labels are for both parts")
    width, other = (
        arrays[name].shape[1] for name in ("x", "x_test" if "x_test" in arrays else "x")
    )
    if width != other:
        raise InputError(f"{path}: x has {width} columns, but x_test {other}")
    return found._replace(arrays=arrays)


def _check_points(
    path: Path, name: str, points: NDArray, columns: Sequence[Column] | None
) -> NDArray:
    if points.ndim != 2:
        raise InputError(f"{path}: {name} has shape {points.shape}, allowed is (points, columns)")
    if points.dtype.kind not in "biuf":
        raise InputError(f"{path}: {name} holds {points.dtype}, allowed are numbers")
    if columns is not None:
        points = points[:, [_index(path, None, column, points.shape[1]) for column in columns]]
    if not points.size:
        raise InputError(f"{path}: {name} has shape {points.shape}, that is no numbers")
    for start in range(0, len(points), _ROWS):
        bad = np.argwhere(~np.isfinite(points[start : start + _ROWS]))
        if len(bad):
            row, column = start + int(bad[0, 0]), int(bad[0, 1])
            value = points[row, column]
            raise InputError(
                f"{path}: {name}[{row}, {column}] is {value}, allowed are finite numbers"
            )
    return points


@dataclass(frozen=True)
class _Layout:
    """Columns of a table.

    Attributes:
        names: Fields of the header line, or the numbers of the columns from 1.
        header: Whether the first line is a header.
        numbers: Indices of the columns of numbers.
        label: Index of the column of labels, if there is one.
        id: Index of the column of ids, likewise.
    """

    names: list[str]
    header: bool
    numbers: list[int]
    label: int | None
    id: int | None

    def read(self, at: Position, row: list[str]) -> list[float]:
        """Read the numbers of a row."""
        if len(row) != len(self.names):
            raise InputError(f"{at}: {len(row)} columns, the first line has {len(self.names)}")
        found: list[float] = []
        for index in self.numbers:
            value = _number(row[index])
            if value is None:
                raise self._error(at, index, row[index])
            found.append(value)
        return found

    def _error(self, at: Position, index: int, field: str) -> InputError:
        advice = "allowed are finite numbers"
        other = [sign for sign in _DELIMITERS if sign in field]
        if len(self.names) == 1 and other:
            advice += f"; {other[0]!r} separates no columns here: .csv has ',', .tsv has tabs"
        elif not self.header:
            advice += ", or a header line of names alone; --columns selects columns"
        else:
            advice += "; --columns, --id_column and --label_column tell other columns apart"
        return InputError(
            f"{at}: column {self.names[index][:_SHOWN]}: {field[:_SHOWN]!r}; {advice}"
        )


def read_table(
    path: Path,
    delimiter: str,
    *,
    columns: Sequence[Column] | None = None,
    label_column: Column | None = None,
    id_column: Column | None = None,
    by_name: bool = False,
) -> PointFile:
    """Read a table of numbers, with or without a header line.

    A first line with no number in it is a header; so is one that has a column given by name, and
    one with 0, 1, 2 and so on, as pandas names columns. A first column without a name holds ids.

    Args:
        path: UTF-8, with or without a byte-order mark; with `.gz` packed.
        delimiter: Character between columns.
        columns: Columns of numbers; None for all others than those of labels and ids.
        label_column: Column of labels.
        id_column: Column of ids.
        by_name: Take `columns` as names alone, also those that are digits, such as pandas' 0 and 1.

    Raises:
        InputError: with the line, the column, what was found, and what is allowed.
    """
    layout: _Layout | None = None
    numbers, labels, ids = array("f"), [], []
    with reading(path, "a table of numbers, UTF-8") as at, open_bytes(path) as file:
        for row in filter(None, csv.reader(_lines(file, at), delimiter=delimiter, strict=True)):
            if layout is None:
                layout = _lay_out(at, row, columns, label_column, id_column, by_name=by_name)
                if layout.header:
                    if _is_range(row):
                        _log.info(f"{at}: {', '.join(row)[:_SHOWN]}: read as names of columns")
                    continue
            numbers.extend(layout.read(at, row))
            if layout.label is not None:
                labels.append(row[layout.label])
            if layout.id is not None:
                ids.append(row[layout.id])
    if layout is None or not numbers:
        raise InputError(f"{path}: empty; a line for each point is needed")
    names = [layout.names[index] for index in layout.numbers]
    x = np.frombuffer(numbers, dtype=np.float32).reshape(-1, len(layout.numbers))
    return PointFile(
        {"x": x} if layout.label is None else {"x": x, "y": np.array(labels)},
        None if layout.id is None else ids,
        names if layout.header else None,
    )


def _lines(file: Iterable[bytes], at: Position) -> Iterator[str]:
    for at.line, line in enumerate(file, 1):
        yield line.decode("utf-8-sig" if at.line == 1 else "utf-8")


def _lay_out(
    at: Position,
    first: list[str],
    columns: Sequence[Column] | None,
    label_column: Column | None,
    id_column: Column | None,
    *,
    by_name: bool,
) -> _Layout:
    given = [*(columns or ()), *(c for c in (label_column, id_column) if c is not None)]
    named = by_name or any(not str(column).isdecimal() for column in given)
    label, identity = (
        None if column is None else _index(at, first, column, len(first))
        for column in (label_column, id_column)
    )
    numbered = _is_range(first)  # as pandas writes columns that have no name
    unnamed = not first[0].strip() and (numbered or all(_number(x) is None for x in first[1:]))
    numbers = [_index(at, first, column, len(first), by_name=by_name) for column in columns or ()]
    if unnamed and identity is None and 0 not in (label, *numbers) and len(first) > 1:
        identity = 0
    if columns is None:
        numbers = [index for index in range(len(first)) if index not in (label, identity)]
    if not numbers:
        raise InputError(f"{at}: no column of numbers is left besides labels and ids")
    header = named or numbered or all(_number(first[index]) is None for index in numbers)
    names = first if header else [str(index + 1) for index in range(len(first))]
    return _Layout(names, header, numbers, label, identity)


def _index(
    at: Position | Path,
    first: list[str] | None,
    column: Column,
    count: int,
    *,
    by_name: bool = False,
) -> int:
    """Find the index of a column given by name or number."""
    name = str(column)
    if name.isdecimal() and not by_name:
        if not 1 <= int(name[:9]) <= count:
            raise InputError(f"{at}: no column {name[:_SHOWN]}, there are {count}")
        return int(name) - 1
    if first is None:
        raise InputError(f"{at}: no column {name!r}; arrays have numbers, from 1 to {count}")
    if first.count(name) != 1:
        found = "there are several" if name in first else f"the first line has {first}"[:200]
        raise InputError(f"{at}: no column {name!r}: {found}; allowed are also numbers from 1")
    return first.index(name)


def _is_range(fields: Sequence[str]) -> bool:
    """Tell whether fields are 0, 1, 2 and so on; one that is empty may stand before them."""
    named = fields[1:] if not fields[0].strip() else fields
    return len(named) > 1 and list(named) == [str(number) for number in range(len(named))]


def _number(field: str) -> float | None:
    """Read a finite number within the range of float32; None if it is none."""
    try:
        value = float(field)
    except ValueError:
        return None
    return value if abs(value) <= _LARGEST and "_" not in field else None
