"""`clusterformer predict`: label texts with a trained model, line by line as they come."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterformer.errors import InputError

if TYPE_CHECKING:
    from clusterformer.api import TrainedModel

HELP = """
usage: clusterformer predict --checkpoint RUN [--input FILE]

Label texts with a trained model. It reads one text per line, and writes one line for each at once.
A pair of texts is one line with a tab between them. No data set is needed, only the checkpoint.

  --checkpoint RUN  run directory (its best checkpoint), or a .ckpt file
  --average N       mean of the weights after the last N validations, or best:N
  --input FILE      texts, UTF-8, one per line; a file or pipe (default: standard input)
  --probabilities   the probabilities of all labels too (classifiers)
  --format tsv      label, tab, probability; or jsonl: one JSON object per line
  --device cpu      cpu or cuda (default: cuda if there is one)
  --trust PACKAGE   allow the checkpoint to import a class of that package; names of several with
                    commas. Classes of clusterformer need no trust

examples:
  echo "a fine film" | clusterformer predict --checkpoint runs/mr/1
  clusterformer predict --checkpoint runs/mr/1 --input reviews.txt --format jsonl > labels.jsonl
"""

_MAX_LINES = 64  # lines a batch


def run(arguments: list[str]) -> None:
    """Read texts, write predictions, both line by line."""
    probabilities = "--probabilities" in arguments
    predict_lines(
        [argument for argument in arguments if argument != "--probabilities"],
        ("tsv", "jsonl"),
        lambda model, lines: model.predict(lines, probabilities=probabilities),
    )


def predict_lines(
    arguments: list[str],
    layouts: tuple[str, ...],
    predict: Callable[[TrainedModel, list[str]], list[dict[str, Any]]],
) -> None:
    """Read texts and write a line for each record that a trained model makes of them.

    Args:
        arguments: Command line, without the command.
        layouts: Allowed layouts of the lines, the default first; "text" is the first value of a
            record and nothing else.
        predict: Makes the records of some texts.
    """
    from clusterformer.cli.evaluation import load_model
    from clusterformer.cli.options import pop_option

    source, arguments = pop_option(arguments, "--input")
    layout, arguments = pop_option(arguments, "--format")
    if layout not in (None, *layouts):
        raise InputError(f"--format is {' or '.join(layouts)}, got {layout!r}")
    with ExitStack() as stack:
        file = stack.enter_context(Path(source).open("rb")).fileno() if source else 0
        model, _ = load_model(arguments)
        for lines in _chunks(file, source or "standard input", model.task.check_text):
            for record in predict(model, lines):
                print(_formatted(record, layout or layouts[0]), flush=True)


def _chunks(file: int, name: str, check: Callable[[str], None]) -> Iterator[list[str]]:
    """Read texts from a file descriptor, as many together as are there without waiting.

    A bad line raises when the texts before it have been yielded.
    """
    number = 0
    for lines in _arrivals(file):
        chunk: list[str] = []
        for line in lines:
            number += 1
            try:
                text = _text(line)
                check(text)
            except InputError as error:
                yield chunk
                raise InputError(f"{name}:{number}: {error}") from error
            chunk.append(text)
            if len(chunk) == _MAX_LINES:
                yield chunk
                chunk = []
        yield chunk


def _arrivals(file: int) -> Iterator[list[bytes]]:
    """Read whole lines, as soon as some are there."""
    rest = b""
    while data := os.read(file, 1 << 16):
        *whole, rest = (rest + data).split(b"\n")
        yield whole
    if rest:
        yield [rest]


def _text(line: bytes) -> str:
    try:
        text = line.removeprefix(codecs.BOM_UTF8).decode().strip()
    except UnicodeDecodeError as error:
        raise InputError(
            f"byte 0x{line[error.start]:02x} is not UTF-8; convert the file"
        ) from error
    if not text:
        raise InputError("empty line; each line must hold a text")
    return text


def _formatted(record: dict[str, Any], layout: str) -> str:
    if layout == "jsonl":
        return json.dumps(record, ensure_ascii=False)
    if layout == "text":
        return str(next(iter(record.values())))
    return "\t".join(map(_cell, record.values()))


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return json.dumps(
            {name: round(each, 4) for name, each in value.items()}, ensure_ascii=False
        )
    return f"{value:.4f}" if isinstance(value, float) else str(value)
