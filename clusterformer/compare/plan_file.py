"""The YAML file of a comparison: read within limits, with the lines of its parts."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import yaml

from clusterformer.errors import InputError, reading
from clusterformer.training.config_files import load_yaml

MAX_VALUES = 100_000
"""Most keys and values in a file, each counted as often as anchors repeat it."""

Keys = tuple[str, ...]


class PlanFile:
    """Content of a file: mappings with text as keys, lists, and plain values.

    Args:
        path: The file.

    Raises:
        InputError: if it is no such file, has a key twice, or contains itself.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: dict[Keys, int] = {}
        with reading(path, "a YAML file in UTF-8") as at:
            content = load_yaml(path.read_text(encoding="utf-8"), at, MAX_VALUES, self._check)
        if not isinstance(content, dict):
            raise InputError(f"{path}: holds no comparison, such as `rows:` and `seeds:`")
        self.content: Mapping[str, Any] = _with_text_keys(content)

    def refuse(self, message: str, *keys: str) -> NoReturn:
        """Raise an error with the file, and the line of the keys as far as it is known."""
        while keys and keys not in self._lines:
            keys = keys[:-1]
        line = f":{self._lines[keys]}" if keys else ""
        raise InputError(f"{self.path}{line}: {message}")

    def _check(self, node: yaml.Node, keys: Keys = ()) -> None:
        """Walk through all values, before anything is made of them."""
        line, kind = node.start_mark.line + 1, node.tag.rpartition(":")[2]
        if isinstance(node, yaml.SequenceNode):
            for child in node.value:
                self._check(child, keys)
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                line = key.start_mark.line + 1
                if key.tag.rpartition(":")[2] not in ("str", "int", "float", "merge"):
                    raise InputError(f"{self.path}:{line}: a name must be text; write it in quotes")
                inside = (*keys, key.value)
                self._lines.setdefault(inside, line)
                self._check(value, inside)
        elif kind not in ("str", "int", "float", "bool", "null"):
            found = f"{kind} {reprlib.repr(node.value)}"
            raise InputError(f"{self.path}:{line}: {found} is no plain value; write it in quotes")


def shorten(value: Any) -> str:
    """Show a value of any size in a message."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 60
    return short.repr(value)


def is_number(value: Any) -> bool:
    """Tell whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _with_text_keys(inner) for key, inner in value.items()}
    return [_with_text_keys(inner) for inner in value] if isinstance(value, list) else value
