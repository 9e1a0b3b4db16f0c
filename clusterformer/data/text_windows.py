"""Windows of texts for a pretrained model: runs of tokens with its special tokens around them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from clusterformer.data.columns import find_columns
from clusterformer.data.documents import document_pieces, own_documents
from clusterformer.data.tables import FORMATS, is_table, read_table
from clusterformer.errors import InputError

_SHORTEST = 8  # tokens; shorter ends of texts teach nothing


def sample_windows(
    paths: Iterable[str], tokenizer: Any, length: int, count: int, *, column: str | None = None
) -> list[list[int]]:
    """Choose windows of texts at random, each as likely as any other, in random order.

    Args:
        paths: Plain texts, folders of them, or tables (.csv, .tsv, .jsonl) of a text a row; also
            `.gz`. They are read one after the other and need not fit into memory.
        tokenizer: Tokenizer of transformers.
        length: Largest number of tokens of a window, special tokens included.
        count: Number of windows; fewer if the texts have no more.
        column: Column of the texts in tables; None to find it.

    Returns:
        Token ids of each window.

    Raises:
        InputError: if a file cannot be read, the texts have no window, or there is a column but no
            table.
    """
    paths = list(paths)
    if column is not None and not any(map(is_table, paths)):
        allowed = ", ".join(FORMATS)
        raise InputError(f"--text_column is for tables, {allowed}; got {', '.join(paths)}")
    chooser, chosen = random.Random(0), []
    for number, window in enumerate(_windows(paths, tokenizer, length, column)):
        if number < count:
            chosen.append(window)
        elif (slot := chooser.randrange(number + 1)) < count:
            chosen[slot] = window
    if not chosen:
        raise InputError(f"{', '.join(paths)}: no text of {_SHORTEST} tokens or more")
    chooser.shuffle(chosen)
    return chosen


def _windows(
    paths: Iterable[str], tokenizer: Any, length: int, column: str | None
) -> Iterator[list[int]]:
    for path in paths:
        for text in _texts(path, column):
            rows = tokenizer(
                text, truncation=True, max_length=length, return_overflowing_tokens=True
            )
            yield from (row for row in rows["input_ids"] if len(row) >= min(_SHORTEST, length))


def _texts(path: str, column: str | None) -> Iterator[str]:
    file = Path(path).expanduser()
    if not is_table(path):
        yield from document_pieces(own_documents(file))
        return
    header, rows = read_table(file)
    name = column or str(find_columns(file, {"text_column": None}, prefix="--")["text_column"])
    if name not in header:
        raise InputError(f"{path}:1: no column {name!r}, there are {', '.join(header):.500}")
    yield from (str(row[header.index(name)]) for row in rows)
