"""`clusterformer predict`: label texts with a trained model, line by line as they come."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterformer.errors import InputError
from clusterformer.whole_files import naming

if TYPE_CHECKING:
    from clusterformer.api import TrainedModel
    from clusterformer.cli.predict_table import Table

HELP = """
usage: clusterformer predict --checkpoint RUN [--input FILE]

Label texts with a trained model. It reads one text per line, and writes one line for each at once.
A pair of texts is one line with a tab between them. No data set is needed, only the checkpoint.
A model of speech reads the path of a recording per line, and writes text and times. A model of
clusters reads a point per line, numbers with spaces, commas or tabs. A language model writes how
many bits each text takes, and its number of tokens; a masked one fills in <mask>.

  --checkpoint RUN  run directory (its best checkpoint), or a .ckpt file
  --average N       mean of the weights after the last N validations, or best:N
  --input FILE      texts, UTF-8, one per line; a file or pipe (default: standard input)
                    a table by its ending .csv, .tsv or .jsonl: its columns are passed through
                    a recording, by its ending .wav or .flac
  --text_column C   table: column of the texts, by name or by number from 1; by number there is no
                    header line. Of pairs: --first_column and --second_column. Of speech: column of
                    the paths, from the folder of the table (default: audio)
  --probabilities   the probabilities of all labels too (classifiers)
  --format tsv      label, tab, probability; or jsonl: one JSON object per line. Of a table: csv,
                    tsv or jsonl, by default its own
  --device cpu      cpu, cuda or cuda:1 (default: cuda if there is one)
  --trust PACKAGE   allow the checkpoint to import a class of that package; names of several with
                    commas. Classes of clusterformer need no trust

examples:
  echo "a fine film" | clusterformer predict --checkpoint runs/mr/1
  clusterformer predict --checkpoint runs/mr/1 --input reviews.txt --format jsonl > labels.jsonl
  clusterformer predict --checkpoint runs/mr/1 --input reviews.csv --text_column review > labels.csv
"""

Predict = Callable[["TrainedModel", list[str]], Sequence[list[dict[str, Any]]]]
"""Makes the records of each of some texts."""

_COLUMNS = ("text_column", "first_column", "second_column")
_MAX_LINES = 64  # lines a batch
_ANY_TEXT = "<mask>\t<mask>"  # for every task of texts or pairs: the names of a record's values
_RECORDINGS = (".wav", ".wave", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif")


def run(arguments: list[str]) -> None:
    """Read texts, write predictions, both line by line."""
    probabilities = "--probabilities" in arguments
    predict_lines(
        [argument for argument in arguments if argument != "--probabilities"],
        ("tsv", "jsonl"),
        lambda model, lines: [[r] for r in model.predict(lines, probabilities=probabilities)],
    )


def predict_lines(
    arguments: list[str],
    layouts: tuple[str, ...],
    predict: Predict,
    *,
    empty: dict[str, Any] | None = None,
) -> None:
    """Read texts and write a line for each record that a trained model makes of them.

    A file whose name ends as a table's is read as one, and its columns are passed through.

    Args:
        arguments: Command line, without the command.
        layouts: Allowed layouts of the lines, the default first; "text" is the first value of a
            record and nothing else.
        predict: Makes the records of each of some texts.
        empty: Record of an empty line; None if that is an error. An empty text of a table has empty
            fields.
    """
    from clusterformer.cli.evaluation import load_model
    from clusterformer.cli.options import pop_option
    from clusterformer.data.tables import is_table

    source, arguments = pop_option(arguments, "--input")
    if source and source.removesuffix(".gz").endswith((".npy", ".npz")):
        raise InputError(
            f"{source}: a NumPy file, allowed are lines: a point a line, numbers with spaces, "
            "commas or tabs; in Python, clusterformer.load(RUN).predict(points) takes arrays"
        )
    layout, arguments = pop_option(arguments, "--format")
    columns = {}
    for option in _COLUMNS:
        columns[option], arguments = pop_option(arguments, f"--{option}")
    if source and (is_table(source) or any(columns.values())):
        _predict_table(source, columns, layout, layouts, arguments, predict)
        return
    if any(columns.values()):
        raise InputError("--text_column needs --input: a file .csv, .tsv or .jsonl")
    if layout not in (None, *layouts):
        raise InputError(f"--format is {' or '.join(layouts)}, got {layout!r}")
    with ExitStack() as stack:
        opened = stack.enter_context(Path(source).open("rb")) if source else None
        model, _ = load_model(arguments)
        predict(model, [])  # refuses a run of another task, whatever the lines
        check, are_paths = model.task.check_text, model.task.reads == "recording"
        file, name = opened.fileno() if opened else 0, source or "standard input"
        if is_recording := are_paths and Path(name).suffix.lower() in _RECORDINGS:
            check(name)
            chunks = iter([(0, [name])])
        else:
            chunks = _chunks(file, name, check, empty is not None, _most(are_paths))
        for number, lines in chunks:
            where = f"{name}:{number}" if are_paths and not is_recording else ""
            for records in _predicted(model, lines, predict, [empty or {}], where):
                for record in records:
                    print(_formatted(record, layout or layouts[0]), flush=True)


def _most(are_paths: bool) -> int:
    """Return the most lines to predict together: recordings one by one, as each takes long."""
    return 1 if are_paths else _MAX_LINES


def _predicted(
    model: TrainedModel,
    lines: list[str],
    predict: Predict,
    empty: list[dict[str, Any]],
    where: str,
) -> Iterator[list[dict[str, Any]]]:
    """Yield the records of each line; empty ones are no matter of the model.

    An error is told with `where`, the file and line of the only line.
    """
    try:
        found = iter(predict(model, [line for line in lines if line]))
    except InputError as error:
        raise (InputError(f"{where}: {error}") if where else error) from error
    for line in lines:
        yield next(found) if line else empty


def _predict_table(
    source: str,
    columns: dict[str, str | None],
    layout: str | None,
    layouts: tuple[str, ...],
    arguments: list[str],
    predict: Predict,
) -> None:
    from clusterformer.cli.evaluation import load_model
    from clusterformer.cli.predict_table import LAYOUTS, Table

    allowed = dict.fromkeys((*LAYOUTS, *layouts))
    if layout not in (None, *allowed):
        raise InputError(f"--format is {' or '.join(allowed)}, got {layout!r}")
    model, _ = load_model(arguments)
    if model.task.reads == "point":
        raise InputError(
            f"{source}: a table, allowed are points in a file of another ending, such as .txt: a "
            "point a line, numbers with spaces, commas or tabs, and no header"
        )
    predict(model, [])  # refuses a run of another task, whatever the table
    options = _COLUMNS[1:] if model.task.reads == "pair" else _COLUMNS[:1]
    odd = [option for option in _COLUMNS if columns[option] and option not in options]
    if odd:
        raise InputError(f"--{odd[0]} is not for {type(model.task).__name__}: --{options[0]} is")
    are_paths = model.task.reads == "recording"
    if are_paths:
        columns["text_column"] = columns["text_column"] or "audio"
    table = Table(source, {option: columns[option] for option in options}, are_paths=are_paths)
    layout = layout or table.layout
    check = partial(_check_row, table, model.task.check_text)

    def rows() -> Iterator[tuple[int, dict[str, Any]]]:
        for first, texts in _table_chunks(table, check, _most(are_paths)):
            where = table.where(first) if are_paths else ""
            found = _predicted(model, texts, predict, [{}], where)
            for row, records in enumerate(found, first):
                for record in records:
                    yield row, record

    if layout not in LAYOUTS:
        for _, record in rows():
            print(_formatted(record or {"text": ""}, layout), flush=True)
        return
    known = model.task.reads in ("text", "pair")
    names = list(predict(model, [_ANY_TEXT])[0][0]) if known else None
    for line in table.lines(layout, rows(), names):
        print(line, flush=True)


def _check_row(table: Table, check: Callable[[str], None], row: int) -> None:
    """Check the text of a row; of an empty one there is nothing to predict."""
    try:
        if table.texts[row]:
            check(table.texts[row])
    except InputError as error:
        raise InputError(f"{table.where(row)}: {error}") from error


def _table_chunks(
    table: Table, check: Callable[[int], None], most: int
) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of a row, and the texts of at most `most` rows from it on.

    A bad row raises when those before it have been yielded.
    """
    first = 0
    for row in range(len(table.texts)):
        try:
            check(row)
        except InputError:
            yield first, table.texts[first:row]
            raise
        if row + 1 - first == most:
            yield first, table.texts[first : row + 1]
            first = row + 1
    yield first, table.texts[first:]


def _chunks(
    file: int,
    name: str,
    check: Callable[[str], None],
    allow_empty: bool = False,
    most: int = _MAX_LINES,
) -> Iterator[tuple[int, list[str]]]:
    """Read texts from a file descriptor, as many together as are there without waiting.

    A bad line raises when the texts before it have been yielded.

    Yields:
        Number of the last line so far, and at most `most` texts up to it.
    """
    number = 0
    for lines in _arrivals(file, name):
        chunk: list[str] = []
        for line in lines:
            number += 1
            try:
                text = _text(line)
                if not text and not allow_empty:
                    raise InputError("empty line; each line must hold a text")
                if text:
                    check(text)
            except InputError as error:
                yield number - 1, chunk
                raise InputError(f"{name}:{number}: {error}") from error
            chunk.append(text)
            if len(chunk) == most:
                yield number, chunk
                chunk = []
        yield number, chunk


def _arrivals(file: int, name: str) -> Iterator[list[bytes]]:
    """Read whole lines, as soon as some are there; an error of the system names the input."""
    rest: list[bytes] = []  # joined once, so that a long line takes linear time
    while data := _read(file, name):
        if b"\n" in data:
            *whole, last = b"".join([*rest, data]).split(b"\n")
            rest = [last]
            yield whole
        else:
            rest.append(data)
    if line := b"".join(rest):
        yield [line]


def _read(file: int, name: str) -> bytes:
    with naming(Path(name)):
        return os.read(file, 1 << 16)


def _text(line: bytes) -> str:
    try:
        return line.removeprefix(codecs.BOM_UTF8).decode().strip()
    except UnicodeDecodeError as error:
        raise InputError(
            f"byte 0x{line[error.start]:02x} is not UTF-8; convert the file"
        ) from error


def _formatted(record: dict[str, Any], layout: str) -> str:
    """Write a record as one line: line ends in a value, as of a filled blank, are spaces."""
    if layout == "jsonl":
        return json.dumps(record, ensure_ascii=False)
    fields = [str(cell(value)) for value in record.values()]
    if layout == "text" or len(fields) == 1:
        return re.sub(r"\r\n|[\r\n]", " ", fields[0])
    return "\t".join(re.sub(r"\r\n|[\t\r\n]", " ", field) for field in fields)


def cell(value: Any) -> Any:
    """Write a value of a record for a line: numbers to four digits, lists and dicts as JSON."""
    if isinstance(value, dict):
        value = {name: round(each, 4) for name, each in value.items()}
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return f"{value:.4f}" if isinstance(value, float) else value
