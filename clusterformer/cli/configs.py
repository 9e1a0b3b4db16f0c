"""Shipped configurations, found by bare name from any folder."""

from __future__ import annotations

import difflib
from importlib.resources import files
from pathlib import Path

from clusterformer.errors import InputError


def shipped() -> dict[str, Path]:
    """Every shipped configuration: its name, such as "mr.yaml", and its file."""
    root = Path(str(files("clusterformer.configs")))
    return {path.name: path for path in sorted(root.rglob("*.yaml"))}


def find(name: str) -> Path:
    """The file that `--config name` means: a path as it is, else a shipped configuration."""
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


def resolve(arguments: list[str]) -> tuple[list[str], str]:
    """Replace the name after every `--config` or `-c` by its file.

    Returns:
        The new arguments, and a name for the run made of those of the configurations.
    """
    resolved: list[str] = []
    names: list[str] = []
    waiting = False
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if waiting or (equals and option in ("--config", "-c")):
            path = find(argument if waiting else value)
            names.append(path.stem)
            resolved += [str(path)] if waiting else [option, str(path)]
            waiting = False
        else:
            waiting = argument in ("--config", "-c")
            resolved.append(argument)
    return resolved, "-".join(names)
