"""Tables of labelled texts or pairs, read from files; each error is one line that names its line.

The ending names the format, also with `.gz`: `.tsv` splits each line at tabs and nowhere else (no
quoting), `.csv` follows Python's csv module, `.jsonl` holds one JSON object a line.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from clusterformer.errors import InputError, reading

FORMATS = (".tsv", ".csv", ".jsonl")

Column = int | str
"""Name in the header line (JSON: key), or number counted from 1."""

_Line = tuple[int, list[str]]  # line number from 1, fields


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
        path: File whose name ends in one of `FORMATS`, compressed if `.gz` follows.
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
        path: File whose name ends in one of `FORMATS`, compressed if `.gz` follows.
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
        found = list(_json_fields(path, content, columns))
    else:
        found = list(_table_fields(path, _split_lines(path, content, suffix), columns, header))
    if not found:
        raise InputError(f"{path}: no examples in it")
    return found


def table_format(path: Path) -> str:
    """Return the ending that names a table's format, without `.gz`.

    Raises:
        InputError: if it is none of `FORMATS`.
    """
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    suffix = suffixes[-1] if suffixes else ""
    if suffix not in FORMATS:
        allowed = ", ".join(FORMATS)
        raise InputError(f"{path}: unknown ending {suffix!r}, allowed are {allowed}, also with .gz")
    return suffix


def read_table(
    path: Path,
    encoding: str | None = None,
    max_rows: int | None = None,
    absent: object = "",
) -> tuple[list[str], list[list[Any]]]:
    """Return the header line of a table (JSON: the keys) and the fields of its rows.

    Args:
        path: File whose name ends in one of `FORMATS`, compressed if `.gz` follows.
        encoding: Encoding of the file, by Python's name for it; None for UTF-8, where no option
            names another.
        max_rows: Maximum number of rows to read; None for all.
        absent: Field of a key that a JSON object lacks.

    Raises:
        InputError: if the file cannot be read, or a row has another number of fields.
    """
    suffix, content = table_format(path), read_text(path, encoding)
    if suffix == ".jsonl":
        records = [record for _, record in islice(_json_records(path, content), max_rows)]
        header = list(dict.fromkeys(key for record in records for key in record))
        return header, [[record.get(key, absent) for key in header] for record in records]
    lines = _split_lines(path, content, suffix)
    _, header = next(lines, (1, []))
    rows = []
    for number, line in islice(lines, max_rows):
        if len(line) != len(header):
            raise InputError(f"{path}:{number}: {len(line)} columns, line 1 has {len(header)}")
        rows.append(line)
    return header, rows


def read_text(path: Path, encoding: str | None = None) -> str:
    """Read a whole file as text, through gzip if its name ends in `.gz`; drop a byte order mark.

    Raises:
        InputError: if it is missing, damaged, or not in `encoding` (with the line).
    """
    advice = "convert the file" if encoding is None else "convert the file or set encoding"
    encoding = encoding or "utf-8"
    with reading(path, f"text in {encoding}"):
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        try:
            text = content.decode(encoding).removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            found = error.object[error.start : min(error.end, error.start + 8)].hex(" ")
            raise InputError(f"{path}:{line}: bytes {found} are not {encoding}; {advice}") from None
        except LookupError:
            raise InputError(
                f"unknown encoding {encoding!r}, allowed are Python's, such as utf-8 and cp1252"
            ) from None
        text.encode()  # some encodings can spell half a character
        return text


def text_lines(content: str) -> list[str]:
    """Split a text at line ends alone; `splitlines()` also does at form feeds and the like."""
    *lines, last = content.split("\n")
    return [line.removesuffix("\r") for line in (*lines, *([last] if last else []))]


def _split_lines(path: Path, content: str, suffix: str) -> Iterator[_Line]:
    return _csv_lines(path, content) if suffix == ".csv" else _tsv_lines(content)


def _tsv_lines(content: str) -> Iterator[_Line]:
    for number, line in enumerate(text_lines(content), 1):
        yield number, line.split("\t") if line else []


def _csv_lines(path: Path, content: str) -> Iterator[_Line]:
    csv.field_size_limit(2**31 - 1)  # the default of 128 KiB is shorter than some documents
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    line = 1
    try:
        for fields in reader:
            yield line, fields
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}:{line}: not CSV: {error}") from None


def _table_fields(
    path: Path, lines: Iterator[_Line], columns: _Columns, header: bool
) -> Iterator[_Fields]:
    number, first = next(lines, (1, []))
    given = columns.texts, columns.names
    texts, names = ([_index(path, first, column) for column in group] for group in given)

    def fields(number: int, line: list[str]) -> _Fields:
        found = [line[i] for i in texts], [line[i] for i in names]
        return _fields(path, number, *found, columns)

    if not header and not any(isinstance(column, str) for group in given for column in group):
        yield fields(number, first)
    for number, line in lines:
        if not line:
            raise InputError(f"{path}:{number}: empty line, allowed is text with a label")
        if len(line) != len(first):
            raise InputError(f"{path}:{number}: {len(line)} columns, line 1 has {len(first)}")
        yield fields(number, line)


def _index(path: Path, first: list[str], column: Column) -> int:
    if isinstance(column, int):
        if not 1 <= column <= len(first):
            raise InputError(f"{path}:1: no column {column}, there are {len(first)}")
        return column - 1
    if column not in first:
        raise InputError(
            f"{path}:1: no column {column!r}, the header line has {f'{first}':.500}; "
            "without a header line, give the columns by number"
        )
    require_one(path, first, column)
    return first.index(column)


def require_one(path: str | Path, header: list[str], column: str) -> None:
    """Refuse a name of several columns.

    Raises:
        InputError: if the header line has it more than once.
    """
    if (count := header.count(column)) > 1:
        raise InputError(f"{path}:1: {count} columns are called {column!r}; rename all but one")


def _json_fields(path: Path, content: str, columns: _Columns) -> Iterator[_Fields]:
    for number, record in _json_records(path, content):
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


def _json_records(path: Path, content: str) -> Iterator[tuple[int, dict[Any, Any]]]:
    with reading(path, "JSON lines") as at:
        for at.line, line in enumerate(text_lines(content), 1):
            if not line:
                raise InputError(f"{at}: empty line, allowed is a JSON object")
            record = json.loads(line)
            if not isinstance(record, dict):
                found = type(record).__name__
                raise InputError(f"{at}: found a JSON {found}, allowed is an object")
            if "\\u" in line:  # the only way to spell half a character
                json.dumps(record, ensure_ascii=False).encode()
            yield at.line, record


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
