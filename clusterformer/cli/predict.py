"""`clusterformer predict`: label text with a trained model, line by line as it comes."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterformer.errors import InputError

if TYPE_CHECKING:
    from clusterformer.cli.evaluation import Trained

HELP = """
usage: clusterformer predict --checkpoint RUN [--input FILE]

Label text with a trained model: one text a line in, one line out for each, as soon as it is known.
A pair of texts stands on one line, with a tab between them. The checkpoint is all it needs.

  --checkpoint RUN  run folder (its best checkpoint), or a .ckpt file
  --average N       the mean of the weights after the last N validations, or best:N
  --input FILE      texts, UTF-8, one a line; a file or pipe (default: standard input)
  --format tsv      label, tab, probability; or jsonl: one JSON object a line
  --device cpu      cpu or cuda (default: cuda where there is one)

examples:
  echo "a fine film" | clusterformer predict --checkpoint runs/mr/1
  clusterformer predict --checkpoint runs/mr/1 --input reviews.txt --format jsonl > labels.jsonl
"""

_MOST = 64  # lines a batch


def run(arguments: list[str]) -> None:
    """Read texts, write predictions, both line by line."""
    from clusterformer.cli.evaluation import load

    answer(arguments, ("tsv", "jsonl"), load)


def answer(
    arguments: list[str], layouts: tuple[str, ...], load: Callable[[list[str]], Trained]
) -> None:
    """Read texts, write a line for each record that the model has for them.

    Args:
        arguments: Of the command line.
        layouts: Of the lines, the default first: "text" is the first value of a record alone.
        load: Loads the model by what `answer` does not take of the arguments.
    """
    from clusterformer.cli.options import take

    source, arguments = take(arguments, "--input")
    layout, arguments = take(arguments, "--format")
    device, arguments = take(arguments, "--device")
    if layout not in (None, *layouts):
        raise InputError(f"--format is {' or '.join(layouts)}, got {layout!r}")
    with ExitStack() as stack:
        number = stack.enter_context(Path(source).open("rb")).fileno() if source else 0
        predictor = Predictor(load(arguments), device)
        check = predictor.task.check_text
        for lines in _chunks(number, source or "standard input", check):
            for record in predictor(lines):
                print(_written(record, layout or layouts[0]), flush=True)


class Predictor:
    """A trained model that answers texts.

    Args:
        trained: The model and its task.
        device: "cpu" or "cuda"; None: cuda where there is one.
    """

    def __init__(self, trained: Trained, device: str | None = None) -> None:
        from clusterformer.cli.evaluation import ready

        self.task = trained.options.datamodule
        self._model = ready(trained, device)

    def __call__(self, texts: Iterable[str]) -> Iterator[dict[str, Any]]:
        """The task's records for each text, in their order."""
        import torch

        texts = list(texts)
        for batch in self.task.text_dataloader(texts) if texts else ():
            with torch.inference_mode():
                moved = self._model.transfer_batch_to_device(batch, self._model.device, 0)
                records = self.task.predictions(self._model.network, moved)
            yield from records


def _chunks(file: int, name: str, check: Callable[[str], None]) -> Iterator[list[str]]:
    """Texts from a file descriptor, as many together as are there without waiting.

    A bad line raises when the texts before it have been given out.
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
            if len(chunk) == _MOST:
                yield chunk
                chunk = []
        yield chunk


def _arrivals(file: int) -> Iterator[list[bytes]]:
    """Whole lines, as soon as some are there."""
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


def _written(record: dict[str, Any], layout: str) -> str:
    if layout == "jsonl":
        return json.dumps(record, ensure_ascii=False)
    if layout == "text":
        return str(next(iter(record.values())))
    return "\t".join(f"{v:.4f}" if isinstance(v, float) else str(v) for v in record.values())
