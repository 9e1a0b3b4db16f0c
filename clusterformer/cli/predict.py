"""`clusterformer predict`: label text with a trained model, line by line as it comes."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from clusterformer.errors import InputError

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
    import torch

    from clusterformer.cli.evaluation import load, ready
    from clusterformer.cli.options import take

    source, arguments = take(arguments, "--input")
    layout, arguments = take(arguments, "--format")
    device, arguments = take(arguments, "--device")
    if layout not in (None, "tsv", "jsonl"):
        raise InputError(f"--format is tsv or jsonl, got {layout!r}")
    with ExitStack() as stack:
        number = stack.enter_context(Path(source).open("rb")).fileno() if source else 0
        trained = load(arguments)
        model, task = ready(trained, device), trained.options.datamodule
        stack.enter_context(torch.inference_mode())
        for lines in _chunks(number, source or "standard input", task.check_text):
            for batch in task.text_dataloader(lines) if lines else ():
                moved = model.transfer_batch_to_device(batch, model.device, 0)
                for record in task.predictions(model(moved), moved):
                    print(_written(record, layout or "tsv"), flush=True)


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
    return "\t".join(f"{v:.4f}" if isinstance(v, float) else str(v) for v in record.values())
