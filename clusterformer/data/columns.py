"""Columns of the user's own tables, found by what they hold where no option names them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from clusterformer.data.tables import Column, hint_of_semicolons, read_table, table_format
from clusterformer.errors import InputError

_log = logging.getLogger(__name__)

COLUMNS = ("text_column", "first_column", "second_column", "label_column")
"""Options of tasks that name a column that must be there."""

_MAX_ROWS = 1000
_MIN_WORDS = 3.0  # mean number of words of a text
_MAX_LABELS = 100
_MAX_LABEL_LENGTH = 40  # characters


def find_columns(
    path: str | Path,
    columns: Mapping[str, Column | None],
    encoding: str = "utf-8",
    *,
    header_line: bool = False,
    prefix: str = "data.",
) -> dict[str, Column]:
    """Choose a column for each option that names none.

    A column with the option's usual name (`text`, `first`, `second`, `label`) is taken. Else the
    columns decide: texts are of several words and mostly differ; labels are short and each occurs
    several times. If there are as many such columns as needed, no more and no fewer, they are
    taken in their order, and a note says so. Line 1 is then the header: nothing is found where it
    may be an example, since it reads as one or another column is given by number.

    Args:
        path: Own training file.
        columns: Columns by option, such as {"text_column": None, "label_column": "stars"}.
        encoding: Encoding of the file.
        header_line: Whether line 1 is a header although a column is given by number.
        prefix: Beginning of the options' names, for messages.

    Returns:
        A column for every option.

    Raises:
        InputError: if the file does not decide; it names the options and the columns there are.
    """
    given = {option: column for option, column in columns.items() if column is not None}
    if len(given) == len(columns):
        return given
    header, rows = read_table(Path(path).expanduser(), encoding, _MAX_ROWS)
    is_json = table_format(Path(path)) == ".jsonl"
    taken = {str(column) if is_json else column for column in given.values()}
    names = [name for name in dict.fromkeys(header) if name not in taken]
    usual = {option: option.removesuffix("_column") for option in columns if option not in given}
    usual = {option: name for option, name in usual.items() if name in names}
    names = [name for name in names if name not in usual.values()]
    wanted = [option for option in columns if option not in given and option not in usual]
    values = {name: [str(row[header.index(name)]).strip() for row in rows] for name in names}
    has_header = header_line or is_json
    numbered = any(str(column).isdecimal() and column not in header for column in given.values())
    guessed: dict[str, str] = {}
    for fits, is_label in ((_is_text, False), (_is_label, True)):
        options = [option for option in wanted if (option == "label_column") == is_label]
        found = [name for name in names if fits(values[name])]
        doubtful = not has_header and (numbered or _is_row(header, rows, found))
        if options and (len(found) != len(options) or doubtful):
            raise _undecided(path, [prefix + option for option in options], header)
        guessed |= dict(zip(options, found, strict=False))
    if guessed:
        said = ", ".join(
            f"{guessed[option]!r} as {option.removesuffix('_column')}" for option in wanted
        )
        said += "" if has_header else "; line 1 is the header"
        rank_zero_only(_log.info)(f"{path}: using column {said}")
    chosen = {**given, **usual, **guessed}
    return {option: chosen[option] for option in columns}


def _is_text(values: Sequence[str]) -> bool:
    words = sum(len(value.split()) for value in values)
    return words >= _MIN_WORDS * max(1, len(values)) and len(set(values)) > len(values) / 2


def _is_label(values: Sequence[str]) -> bool:
    different = set(values)
    return (
        2 <= len(different) <= min(_MAX_LABELS, len(values) / 2)
        and "" not in different
        and max(map(len, different)) <= _MAX_LABEL_LENGTH
    )


def _is_row(header: Sequence[str], rows: Sequence[Sequence[str]], found: Sequence[str]) -> bool:
    """Tell whether the first line is no header: it has a text, or a label of other lines."""
    for name in found:
        column = header.index(name)
        if len(name.split()) >= _MIN_WORDS or any(row[column] == name for row in rows):
            return True
    return False


def _undecided(path: str | Path, options: Sequence[str], header: list[str]) -> InputError:
    if not header:
        return InputError(f"{path}: the file is empty")
    names = " and ".join(options)
    found = ", ".join(map(repr, header[:20])) + ", ..." * (len(header) > 20)
    return InputError(
        f"{path}:1: cannot tell which column is for {names}; set it to one of {found:.500}; "
        f"without a header line, to the number of a column{hint_of_semicolons(header)}"
    )
