"""Read labelled text from the user's own files, and say in one line what is wrong with them.

The ending names the format, `.gz` behind it included: `.tsv` splits each line on tabs and nothing
else (no quoting), `.csv` follows Python's csv module, `.jsonl` holds one JSON object a line.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from clusterformer.errors import InputError

FORMATS = (".tsv", ".csv", ".jsonl")

_Line = tuple[int, list[str]]  # line number from 1, fields


class Row(NamedTuple):
    """One example and where it stands: file:line, lines counted from 1."""

    text: str
    label: str
    where: str


def read_rows(
    path: str | Path,
    *,
    text_column: int | str = "text",
    label_column: int | str = "label",
    header: bool = False,
    encoding: str = "utf-8",
) -> list[Row]:
    """Read every example of a file.

    Args:
        path: A file whose name ends in one of `FORMATS`, compressed if `.gz` follows.
        text_column: Name in the header line (JSON: key), or number counted from 1.
        label_column: Likewise.
        header: Whether to skip a header line although both columns are numbers.
        encoding: Of the file's bytes, by Python's name for it.

    Raises:
        InputError: if the file cannot be read as told, or a line lacks text or label.
    """
    path = Path(path).expanduser()
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    suffix = suffixes[-1] if suffixes else ""
    if suffix not in FORMATS:
        allowed = ", ".join(FORMATS)
        raise InputError(f"{path}: unknown ending {suffix!r}, allowed are {allowed}, also with .gz")
    content = read_text(path, encoding)
    columns = (text_column, label_column)
    if suffix == ".jsonl":
        rows = list(_json_rows(path, content, columns))
    else:
        lines = _csv_lines(path, content) if suffix == ".csv" else _tsv_lines(content)
        rows = list(_table_rows(path, lines, columns, header))
    if not rows:
        raise InputError(f"{path}: no examples in it")
    return rows


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Read a whole file as text, through gzip if its name ends in `.gz`; no byte order mark.

    Raises:
        InputError: if it is missing, no gzip file, or not in `encoding`; the latter with its line.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        return content.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        found = error.object[error.start : error.end].hex(" ")
        raise InputError(
            f"{path}:{line}: bytes {found} are not {encoding}; convert the file or set encoding"
        ) from None
    except LookupError:
        raise InputError(
            f"unknown encoding {encoding!r}, allowed are Python's, such as utf-8 and cp1252"
        ) from None
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None


def _lines(content: str) -> Iterator[tuple[int, str]]:
    lines = content.split("\n")  # splitlines() would also split at form feeds and the like
    for number, line in enumerate(lines, 1):
        if number < len(lines) or line:
            yield number, line.removesuffix("\r")


def _tsv_lines(content: str) -> Iterator[_Line]:
    for number, line in _lines(content):
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


def _table_rows(
    path: Path, lines: Iterator[_Line], columns: tuple[int | str, int | str], header: bool
) -> Iterator[Row]:
    number, first = next(lines, (1, []))
    text, label = (_index(path, first, column) for column in columns)
    if not header and not any(isinstance(column, str) for column in columns):
        yield _row(path, number, first[text], first[label])
    for number, fields in lines:
        if not fields:
            raise InputError(f"{path}:{number}: empty line, allowed is text with a label")
        if len(fields) != len(first):
            raise InputError(f"{path}:{number}: {len(fields)} columns, line 1 has {len(first)}")
        yield _row(path, number, fields[text], fields[label])


def _index(path: Path, first: list[str], column: int | str) -> int:
    if isinstance(column, int):
        if not 1 <= column <= len(first):
            raise InputError(f"{path}:1: no column {column}, there are {len(first)}")
        return column - 1
    if column not in first:
        raise InputError(
            f"{path}:1: no column {column!r}, the header line has {first}; "
            "without a header line, give the columns by number"
        )
    return first.index(column)


def _json_rows(path: Path, content: str, columns: tuple[int | str, int | str]) -> Iterator[Row]:
    for number, line in _lines(content):
        if not line:
            raise InputError(f"{path}:{number}: empty line, allowed is a JSON object")
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}:{number}: not JSON: {error.msg}") from None
        if not isinstance(record, dict):
            found = type(record).__name__
            raise InputError(f"{path}:{number}: found a JSON {found}, allowed is an object")
        for column in columns:
            if column not in record:
                raise InputError(f"{path}:{number}: no key {column!r}, there are {list(record)}")
        text, label = (record[column] for column in columns)
        if not isinstance(text, str):
            raise InputError(f"{path}:{number}: {columns[0]} is {text!r}, allowed is a string")
        if not isinstance(label, str | int):
            raise InputError(
                f"{path}:{number}: {columns[1]} is {label!r}, allowed is a string or an integer"
            )
        yield _row(path, number, text, str(label))


def _row(path: Path, line: int, text: str, label: str) -> Row:
    where = f"{path}:{line}"
    if not text.strip():
        raise InputError(f"{where}: empty text, allowed is at least one word")
    if not label.strip():
        raise InputError(f"{where}: empty label, allowed is any other string")
    return Row(text, label.strip(), where)
