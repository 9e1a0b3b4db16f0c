"""The defaults of a mechanism that replaces another, as `--model.attention` does."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from pydoc import locate
from typing import Any

from jsonargparse import Namespace

from clusterformer.training.config_files import parse_yaml, read_yaml

MECHANISMS = ("attention", "outer_attention", "decoder_attention", "cross_attention")
"""Options of the model that choose a mechanism."""


def given_options(arguments: Sequence[str]) -> set[str]:
    """Name the options of mechanisms that a command line and its files give a value.

    Returns:
        Names such as `attention.num_clusters`.
    """
    return {name for option, value in _pairs(arguments) for name in _given(option, value)}


def restore_defaults(config: Namespace, given: Set[str]) -> None:
    """Give each mechanism its own default where no file and no argument gives a value.

    jsonargparse hands the values of a class to the class that replaces it, those that were its
    defaults too. Values that were given are meant for any mechanism that has the option.

    Args:
        config: The parsed options; changed in place.
        given: Options that were given, from `given_options`.
    """
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
        written = value.lstrip().startswith("{")
        tree = parse_yaml(value, "--config") if written else read_yaml(Path(value))
        model = tree.get("model") or {}
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
        yield from _keys(mechanism, parse_yaml(value, option))


def _keys(mechanism: str, tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        for name in {**tree, **(tree.get("init_args") or {})}:
            yield f"{mechanism}.{name}"
