"""Tables in files, and texts: read whole, each error one line that names its line.

The ending names the format, also with `.gz`: `.tsv` splits each line at tabs and nowhere else (no
quoting), `.csv` follows Python's csv module, `.jsonl` holds one JSON object a line.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from clusterformer.data.text_pieces import decoding, open_bytes
from clusterformer.errors import InputError, reading

FORMATS = (".tsv", ".csv", ".jsonl")

Column = int | str
"""Name in the header line, or number counted from 1. In JSON lines the key: 1 is the key "1"."""

Line = tuple[int, list[str]]  # line number from 1, fields


def is_table(path: str | Path) -> bool:
    """Tell from the ending, in letters of either case, whether a file is a table."""
    return str(path).lower().removesuffix(".gz").endswith(FORMATS)


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
        InputError: if the file cannot be read, or a row is empty or has another number of fields.
    """
    suffix, content = table_format(path), read_text(path, encoding)
    if suffix == ".jsonl":
        records = [record for _, record in islice(json_records(path, content), max_rows)]
        header = list(dict.fromkeys(key for record in records for key in record))
        return header, [[record.get(key, absent) for key in header] for record in records]
    lines = split_lines(path, content, suffix)
    _, header = next(lines, (1, []))
    return header, [row for _, row in islice(table_rows(path, lines, header), max_rows)]


def read_text(path: Path, encoding: str | None = None) -> str:
    """Read a whole file as text, through gzip if its name ends in `.gz`; drop a byte order mark.

    Raises:
        InputError: if it is missing, damaged, or not in `encoding` (with the line).
    """
    known = encoding or "utf-8"
    with reading(path, f"text in {known}"):
        with open_bytes(path) as file:
            content = file.read()
        with decoding(path, encoding):
            text = content.decode(known).removeprefix("\ufeff")
        text.encode()  # some encodings can spell half a character
        return text


def text_lines(content: str) -> list[str]:
    """Split a text at line ends alone; `splitlines()` also does at form feeds and the like."""
    *lines, last = content.split("\n")
    return [line.removesuffix("\r") for line in (*lines, *([last] if last else []))]


def split_lines(path: Path, content: str, suffix: str) -> Iterator[Line]:
    """Yield the number of each line of a table and its fields.

    Raises:
        InputError: if it is not CSV where it should be.
    """
    return _csv_lines(path, content) if suffix == ".csv" else _tsv_lines(content)


def _tsv_lines(content: str) -> Iterator[Line]:
    for number, line in enumerate(text_lines(content), 1):
        yield number, line.split("\t") if line else []


def _csv_lines(path: Path, content: str) -> Iterator[Line]:
    csv.field_size_limit(2**31 - 1)  # the default of 128 KiB is shorter than some documents
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    line = 1
    try:
        for fields in reader:
            yield line, fields
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}:{line}: not CSV: {error}") from None


def table_rows(path: Path, lines: Iterator[Line], header: list[str]) -> Iterator[Line]:
    """Yield the lines below the first one, each of which has as many fields as that.

    Raises:
        InputError: if a line is empty, or has another number of fields.
    """
    for number, line in lines:
        if not line:
            raise InputError(f"{path}:{number}: empty line, allowed is a row of the table")
        if len(line) != len(header):
            raise InputError(
                f"{path}:{number}: {len(line)} columns, line 1 has {len(header)}"
                f"{hint_of_semicolons(header)}"
            )
        yield number, line


def hint_of_semicolons(header: list[str]) -> str:
    """Say what separates columns, where a header line has semicolons and no second column."""
    if len(header) != 1 or ";" not in str(header[0]):
        return ""
    return "; separate columns by commas or tabs, not by ';'"


def require_one(path: str | Path, header: list[str], column: str) -> None:
    """Refuse a name of several columns.

    Raises:
        InputError: if the header line has it more than once.
    """
    if (count := header.count(column)) > 1:
        raise InputError(f"{path}:1: {count} columns are called {column!r}; rename all but one")


def json_records(path: Path, content: str) -> Iterator[tuple[int, dict[Any, Any]]]:
    """Yield the number of each line and its JSON object.

    Raises:
        InputError: if a line is none.
    """
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
