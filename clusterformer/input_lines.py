"""Inputs of a trained model in Python, as the lines of text that its task reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from clusterformer.errors import InputError
from clusterformer.task import Task


def input_lines(task: Task, inputs: Iterable[Any]) -> list[str]:
    """Write each input as a line: columns with tabs between. A data frame gives its rows.

    Raises:
        InputError: for one text in the place of many, or an input that the task cannot read.
    """
    if isinstance(inputs, str | Path):
        raise InputError(f"inputs must be a list, got one text, {str(inputs)!r:.80}")
    if isinstance(inputs, Mapping):
        raise InputError(f"inputs must be a list, got a {type(inputs).__name__}")
    if hasattr(inputs, "columns") and hasattr(inputs, "to_numpy"):
        inputs = inputs.to_numpy()
    return [_line(task, number, given) for number, given in enumerate(inputs, start=1)]


def _line(task: Task, number: int, given: Any) -> str:
    if isinstance(given, str | Path):
        return str(given)
    found = given.tolist() if hasattr(given, "tolist") else given
    if not isinstance(found, Iterable) or isinstance(found, bytes | Mapping):
        raise InputError(f"input {number}: got {given!r:.80}, allowed are texts, pairs and points")
    columns = list(found)
    if task.reads in ("text", "pair", "recording"):
        if len(columns) > 1 and task.reads != "pair":
            raise InputError(f"input {number}: {len(columns)} columns, allowed is one text")
        for column in columns:
            if not isinstance(column, str):
                raise InputError(f"input {number}: got {column!r:.80}, allowed are texts")
    if len(columns) == 1:
        return str(columns[0])
    return "\t".join(str(column).replace("\t", " ") for column in columns)
