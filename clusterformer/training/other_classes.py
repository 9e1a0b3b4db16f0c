"""Options of a mechanism that were chosen for another one, when `--model.attention` changes it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from pydoc import locate
from typing import Any

import yaml
from jsonargparse import Namespace

MECHANISMS = ("attention", "outer_attention", "decoder_attention", "cross_attention")
"""Options of the model that choose a mechanism."""


def restore_defaults(config: Namespace, arguments: Sequence[str]) -> None:
    """Give each mechanism its own default where no file and no argument gives a value.

    jsonargparse hands the values of a class to the class that replaces it, those that were its
    defaults too. Values that were given are meant for any mechanism that has the option.

    Args:
        config: The parsed options; changed in place.
        arguments: The command line that they were parsed from.
    """
    given = {name for option, value in _pairs(arguments) for name in _given(option, value)}
    for mechanism in MECHANISMS:
        chosen = config.get(f"model.{mechanism}")
        if chosen is None or not chosen.get("init_args"):
            continue
        made = locate(chosen["class_path"])
        assert callable(made)
        for name, option in inspect.signature(made).parameters.items():
            known = name in chosen["init_args"] and option.default is not inspect.Parameter.empty
            if known and f"{mechanism}.{name}" not in given:
                chosen["init_args"][name] = option.default


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Split a command line into options and values."""
    following = [*arguments, ""][1:]
    for argument, after in zip(arguments, following, strict=True):
        option, equals, value = argument.partition("=")
        if option.startswith("-"):
            yield option, value if equals else after


def _given(option: str, value: str) -> Iterator[str]:
    """Name the options of mechanisms, such as `attention.num_clusters`, that an option gives."""
    if option in ("--config", "-c"):
        path = Path(value)
        text = value if value.lstrip().startswith("{") else path.read_text(encoding="utf-8-sig")
        model = (yaml.safe_load(text) or {}).get("model") or {}
        for mechanism in MECHANISMS:
            yield from _keys(mechanism, model.get(mechanism))
        return
    section, _, rest = option.removeprefix("--").partition(".")
    mechanism, _, name = rest.partition(".")
    if section != "model" or mechanism not in MECHANISMS:
        return
    if name:
        yield f"{mechanism}.{name.removeprefix('init_args.')}"
    elif value.lstrip().startswith("{"):
        yield from _keys(mechanism, yaml.safe_load(value))


def _keys(mechanism: str, tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        for name in {**tree, **(tree.get("init_args") or {})}:
            yield f"{mechanism}.{name}"
