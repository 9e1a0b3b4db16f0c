"""Labelled texts and pairs, read from `tables`; each error is one line that names its line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from clusterformer.data.tables import (
    Column,
    Line,
    hint_of_semicolons,
    json_records,
    read_text,
    require_one,
    split_lines,
    table_format,
    table_rows,
)
from clusterformer.errors import InputError


class Example(Protocol):
    """One or more texts with a label, and their origin: file:line, lines counted from 1."""

    @property
    def texts(self) -> tuple[str, ...]: ...
    @property
    def label(self) -> str: ...
    @property
    def where(self) -> str: ...


class Row(NamedTuple):
    """One labelled text."""

    text: str
    label: str
    where: str

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,)


class TextPair(NamedTuple):
    """Two labelled texts; `group` names the question of which the second is a candidate answer."""

    first: str
    second: str
    label: str
    where: str
    group: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        return self.first, self.second


class _Columns(NamedTuple):
    """Columns to read: those of texts, and those of names (label, question)."""

    texts: tuple[Column, ...]
    names: tuple[Column, ...]
    allow_empty: bool = False

    def as_keys(self) -> _Columns:
        """Name the columns as keys of JSON objects, which are strings."""
        return self._replace(texts=tuple(map(str, self.texts)), names=tuple(map(str, self.names)))


class _Fields(NamedTuple):
    texts: list[str]
    names: list[str]
    where: str


def read_rows(
    path: str | Path,
    *,
    text_column: Column = "text",
    label_column: Column = "label",
    header: bool = False,
    encoding: str | None = "utf-8",
) -> list[Row]:
    """Read every text of a file and its label.

    Args:
        path: File whose name ends in one of `tables.FORMATS`, compressed if `.gz` follows.
        text_column: Column of the text.
        label_column: Column of the label.
        header: Whether to skip a header line although all columns are given by number.
        encoding: Encoding of the file, by Python's name for it; None for UTF-8, where no option
            names another.

    Raises:
        InputError: if the file cannot be read with these options, or a line lacks text or label.
    """
    columns = _Columns((text_column,), (label_column,))
    found = _read(Path(path).expanduser(), columns, header, encoding)
    return [Row(fields.texts[0], fields.names[0], fields.where) for fields in found]


def read_pairs(
    path: str | Path,
    *,
    first_column: Column = "first",
    second_column: Column = "second",
    label_column: Column = "label",
    group_column: Column | None = None,
    header: bool = False,
    encoding: str = "utf-8",
    allow_empty: bool = False,
) -> list[TextPair]:
    """Read every pair of a file and its label.

    Args:
        path: File whose name ends in one of `tables.FORMATS`, compressed if `.gz` follows.
        first_column: Column of the first text.
        second_column: Column of the second text.
        label_column: Column of the label.
        group_column: Column of the question's name; None if there is none.
        header: Whether to skip a header line although all columns are given by number.
        encoding: Encoding of the file, by Python's name for it.
        allow_empty: Whether a text may have no word.

    Raises:
        InputError: if the file cannot be read with these options, or a line lacks a field.
    """
    grouped = group_column is not None
    names = (label_column,) if group_column is None else (label_column, group_column)
    columns = _Columns((first_column, second_column), names, allow_empty)
    found = _read(Path(path).expanduser(), columns, header, encoding)
    return [
        TextPair(
            fields.texts[0],
            fields.texts[1],
            fields.names[0],
            fields.where,
            fields.names[1] if grouped else "",
        )
        for fields in found
    ]


def _read(path: Path, columns: _Columns, header: bool, encoding: str | None) -> list[_Fields]:
    suffix = table_format(path)
    content = read_text(path, encoding)
    if suffix == ".jsonl":
        found = list(_json_fields(path, content, columns.as_keys()))
    else:
        found = list(_table_fields(path, split_lines(path, content, suffix), columns, header))
    if not found:
        raise InputError(f"{path}: no examples in it")
    return found


def _table_fields(
    path: Path, lines: Iterator[Line], columns: _Columns, header: bool
) -> Iterator[_Fields]:
    number, first = next(lines, (1, []))
    given = columns.texts, columns.names
    texts, names = ([_index(path, first, column) for column in group] for group in given)
    _refuse_shared(path, (*columns.texts, columns.names[0]), (*texts, names[0]))

    def fields(number: int, line: list[str]) -> _Fields:
        found = [line[i] for i in texts], [line[i] for i in names]
        return _fields(path, number, *found, columns)

    if not header and not any(isinstance(column, str) for group in given for column in group):
        yield fields(number, first)
    for number, line in table_rows(path, lines, first):
        yield fields(number, line)


def _refuse_shared(path: Path, columns: Sequence[Column], found: Sequence[Column]) -> None:
    """Refuse a column that is both texts of a pair, or a text and the label.

    Args:
        path: File, for the message.
        columns: Columns of texts and label, as they are given.
        found: Which these are.
    """
    for number, column in enumerate(found):
        if column in found[:number]:
            raise InputError(
                f"{path}:1: column {columns[number]!r} is given twice; each text and the label "
                "have a column of their own"
            )


def _index(path: Path, first: list[str], column: Column) -> int:
    if isinstance(column, int):
        if not 1 <= column <= len(first):
            raise InputError(f"{path}:1: no column {column}, there are {len(first)}")
        return column - 1
    if not first:
        raise InputError(f"{path}: the file is empty")
    if column not in first:
        raise InputError(
            f"{path}:1: no column {column!r}, the header line has {f'{first}':.500}; "
            f"without a header line, give the columns by number{hint_of_semicolons(first)}"
        )
    require_one(path, first, column)
    return first.index(column)


def _json_fields(path: Path, content: str, columns: _Columns) -> Iterator[_Fields]:
    distinct = (*columns.texts, columns.names[0])
    _refuse_shared(path, distinct, distinct)
    for number, record in json_records(path, content):
        for column in (*columns.texts, *columns.names):
            if column not in record:
                there = f"{list(record)}"
                raise InputError(f"{path}:{number}: no key {column!r}, there are {there:.500}")
        texts, names = (
            [record[column] for column in group] for group in (columns.texts, columns.names)
        )
        for column, text in zip(columns.texts, texts, strict=True):
            if not isinstance(text, str):
                raise InputError(f"{path}:{number}: {column} is {text!r:.200}, allowed is a string")
        for column, name in zip(columns.names, names, strict=True):
            is_finite = not isinstance(name, float) or math.isfinite(name)
            if not (isinstance(name, str | int | float) and is_finite):
                raise InputError(
                    f"{path}:{number}: {column} is {name!r:.200}, allowed is a string or a number"
                )
        named = [str(name) for name in names]
        yield _fields(path, number, texts, named, columns)


def _fields(
    path: Path, line: int, texts: list[str], names: list[str], columns: _Columns
) -> _Fields:
    where = f"{path}:{line}"
    if not columns.allow_empty and not all(text.strip() for text in texts):
        raise InputError(f"{where}: empty text, allowed is at least one word")
    for column, name in zip(columns.names, names, strict=True):
        if not name.strip():
            raise InputError(f"{where}: nothing in column {column!r}, allowed is any other string")
    return _Fields(texts, [name.strip() for name in names], where)
