"""The defaults of a mechanism that replaces another, as `--model.attention` does."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from pydoc import locate
from typing import Any

from jsonargparse import Namespace

from clusterformer.training.config_files import parse_yaml, read_yaml

MECHANISMS = ("attention", "outer_attention", "decoder_attention", "cross_attention")
"""Options of the model that choose a mechanism."""

_YAML = re.compile(r"^\s*\{|:\s")  # of options; the name of a class has neither


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


def without_defaults(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the options of a mechanism that have their default, for another to have its own."""
    made = locate(chosen["class_path"])
    assert callable(made)
    defaults = {name: o.default for name, o in inspect.signature(made).parameters.items()}
    options = chosen.get("init_args") or {}
    kept = {name: value for name, value in options.items() if value != defaults.get(name)}
    return {**chosen, "init_args": kept}


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
        yield from _keys_of_model(tree.get("model"))
        return
    section, _, rest = option.removeprefix("--").partition(".")
    mechanism, _, name = rest.partition(".")
    if section != "model" or (mechanism and mechanism not in MECHANISMS):
        return
    if name not in ("", "init_args"):
        yield f"{mechanism}.{name.removeprefix('init_args.')}"
    elif _YAML.search(value):
        tree = parse_yaml(value, option)
        yield from _keys(mechanism, tree) if mechanism else _keys_of_model(tree)


def _keys_of_model(tree: Any) -> Iterator[str]:
    for mechanism in MECHANISMS if isinstance(tree, dict) else ():
        yield from _keys(mechanism, tree.get(mechanism))


def _keys(mechanism: str, tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        for name in {**tree, **(tree.get("init_args") or {})}:
            yield f"{mechanism}.{name}"
