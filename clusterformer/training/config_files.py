"""Shipped configurations, found by bare name from any folder."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from clusterformer.errors import InputError

COMPARISONS = "compare"
"""Folder of the shipped comparisons, below that of the shipped configurations."""


def shipped() -> dict[str, Path]:
    """List the shipped configurations: name, such as "mr.yaml", to file."""
    root = Path(str(files("clusterformer.configs")))
    found = sorted(root.rglob("*.yaml"))
    return {path.name: path for path in found if path.parent.name != COMPARISONS}


def comparisons() -> dict[str, Path]:
    """List the shipped comparisons likewise."""
    root = Path(str(files("clusterformer.configs"))) / COMPARISONS
    return {path.name: path for path in sorted(root.glob("*.yaml"))}


def check(path: Path) -> None:
    """Refuse a file that is not YAML or not a mapping of options."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"{path}:{line}: not valid YAML: {error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a text file in UTF-8: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds no options, such as `model:` or `data:`")


def to_yaml(config: Mapping[str, Any]) -> str:
    """Write a configuration as a file has it."""
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)


def locate(word: str, paths: Sequence[Path]) -> str:
    """Find a word in configuration files; return "file:line: ", or "" if it is in none."""
    pattern = re.compile(rf"(?<![\w.]){re.escape(word)}(?![\w.])")
    for path in reversed(paths):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if pattern.search(line.partition(" #")[0]):
                return f"{path}:{number}: "
    return ""


def find(name: str) -> Path:
    """Find the file that `--config name` means: a path as it is, else a shipped configuration."""
    if Path(name).is_file():
        return Path(name)
    known = shipped()
    found = known.get(name) or known.get(f"{name}.yaml")
    if found is None:
        close = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise InputError(
            f"no configuration {name!r}, neither a file nor a shipped one; "
            f"{hint}there is {', '.join(known) or 'none'}"
        )
    return found


def resolve(arguments: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Replace the name after every `--config` or `-c` by its file, after a check of the file.

    Returns:
        The new arguments, and the files.
    """
    resolved: list[str] = []
    paths: list[Path] = []
    waiting = False
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if waiting or (equals and option in ("--config", "-c")):
            paths.append(find(argument if waiting else value))
            check(paths[-1])
            resolved += [str(paths[-1])] if waiting else [option, str(paths[-1])]
            waiting = False
        else:
            waiting = argument in ("--config", "-c")
            resolved.append(argument)
    return resolved, paths
