"""Prediction for tables: texts of some columns; all columns are passed through to the output."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from clusterformer.cli.predict import cell
from clusterformer.data.audio import expanded
from clusterformer.data.columns import find_columns
from clusterformer.data.tables import FORMATS, Column, read_table, require_one, table_format
from clusterformer.errors import InputError

_ABSENT = object()
"""Field of a key that a JSON object lacks."""

LAYOUTS = tuple(ending[1:] for ending in FORMATS)
"""Layouts of the output."""


class Table:
    """A table with texts.

    Args:
        path: File whose name ends in one of `FORMATS`, also with `.gz`.
        columns: Column of each text by option, by name or by number from 1; None to find it.
        are_paths: Whether the texts are paths, which start at the folder of the table.

    Attributes:
        layout: Layout of the file.
        texts: Text of each row as it stands; of a pair both with a tab between, tabs within them as
            spaces; empty if a text is empty.

    Raises:
        InputError: if the file cannot be read, or has no such column.
    """

    def __init__(
        self, path: str, columns: Mapping[str, str | None], *, are_paths: bool = False
    ) -> None:
        self._path, file = path, Path(path).expanduser()
        self.layout = table_format(file)[1:]
        self._header, self._rows = read_table(file, absent=_ABSENT)
        if not self._header:
            raise InputError(f"{path}: empty, allowed is a table with texts")
        numbers = all(column is not None and column.isdecimal() for column in columns.values())
        self._has_header = self.layout == "jsonl" or not numbers
        chosen: Mapping[str, Column] = {k: v for k, v in columns.items() if v is not None}
        if len(chosen) < len(columns):
            chosen = find_columns(file, columns, prefix="--")
        positions = [self._position(path, str(column)) for column in chosen.values()]
        if not self._has_header:
            self._rows.insert(0, self._header)
        self.texts = []
        for row in self._rows:
            found = (row[position] for position in positions)
            texts = [str(_plain(value)) for value in found]
            is_whole = all(text.strip() for text in texts)
            if len(texts) > 1:
                texts = [text.replace("\t", " ") for text in texts]
            if are_paths and is_whole:
                texts = [str(file.parent / expanded(texts[0].strip()))]
            self.texts.append("\t".join(texts) if is_whole else "")

    def where(self, row: int) -> str:
        """Return the file and the line of a row."""
        before = [self._header] if self._has_header and self.layout != "jsonl" else []
        before += self._rows[:row]
        line = 1 + len(before)
        if self.layout == "csv":  # a field may have several lines
            line += sum(field.count("\n") for fields in before for field in fields)
        return f"{self._path}:{line}"

    def _position(self, path: str, column: str) -> int:
        if column in self._header and self._has_header:
            require_one(path, self._header, column)
            return self._header.index(column)
        if column.isdecimal() and 1 <= int(column) <= len(self._header):
            return int(column) - 1
        found = ", ".join(map(repr, self._header[:20]))
        raise InputError(f"{path}:1: no column {column!r}, there are {found:.500}")

    def lines(
        self,
        layout: str,
        rows: Iterable[tuple[int, Mapping[str, Any]]],
        names: Iterable[str] | None,
    ) -> Iterator[str]:
        """Yield the output: its header if it has one, then the columns of each row and its record.

        Args:
            layout: One of `LAYOUTS`.
            rows: Numbers of rows, and their records; empty ones are of empty texts.
            names: Names of a record's values. None to take those of the first record; rows before
                it wait for them.

        Raises:
            InputError: if two columns share a name, of which JSON would keep one.
        """
        blank = None if names is None else dict.fromkeys(names, "")
        if blank is not None:
            yield from self._header_lines(layout, blank)
        waiting: list[int] = []
        for row, record in rows:
            if blank is None and not record:
                waiting.append(row)
                continue
            if blank is None:
                blank = dict.fromkeys(record, "")
                yield from self._header_lines(layout, blank)
                yield from (self._line(layout, each, blank) for each in waiting)
            yield self._line(layout, row, record or blank)
        if blank is None:
            yield from self._header_lines(layout, ())
            yield from (self._line(layout, each, {}) for each in waiting)

    def _header_lines(self, layout: str, names: Iterable[str]) -> Iterator[str]:
        if layout == "jsonl" and self._has_header:
            for name in self._header:
                require_one(self._path, self._header, name)
        if layout != "jsonl" and self._has_header:
            yield _line(layout, [*self._header, *self._new(names)])

    def _line(self, layout: str, row: int, record: Mapping[str, Any]) -> str:
        values = self._rows[row]
        if layout == "jsonl":
            names = self._header if self._has_header else map(str, range(1, len(values) + 1))
            own = zip(names, values, strict=True)
            added = zip(self._new(record), record.values(), strict=True)
            kept = {name: value for name, value in own if value is not _ABSENT}
            return json.dumps(kept | dict(added), ensure_ascii=False)
        return _line(layout, [*map(_plain, values), *map(cell, record.values())])

    def _new(self, names: Iterable[str]) -> Iterator[str]:
        """Yield names for the columns of a record that the table does not have."""
        for name in names:
            while self._has_header and name in self._header:
                name = f"predicted_{name}"
            yield name


def _plain(value: Any) -> Any:
    """Write a value of a JSON object as a field; what CSV has no form for stays JSON."""
    if value is None or value is _ABSENT:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, bool | list | dict) else value


def _line(layout: str, fields: list[Any]) -> str:
    if layout == "tsv":
        return "\t".join(re.sub(r"\r\n|[\t\r\n]", " ", str("" if v is None else v)) for v in fields)
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(fields)
    return line.getvalue().removesuffix("\n")
