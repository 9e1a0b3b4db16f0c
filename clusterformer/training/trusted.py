"""Classes that a configuration of somebody else may choose: ours, or those the user names.

A checkpoint and a run directory hold a configuration. Reading one must not import a module of the
file's choice, and must not write to a folder of its choice.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from clusterformer.attention import AttentionCore
from clusterformer.errors import InputError
from clusterformer.structure import require_structure
from clusterformer.task import Task
from clusterformer.training.config_files import parse_yaml, read_yaml, resolve
from clusterformer.training.mechanism_defaults import MECHANISMS
from clusterformer.training.parser_messages import subclasses

WORDS = {"accelerator", "strategy", "devices", "precision", "max_time", "val_check_interval"}
WORDS |= {"gradient_clip_algorithm", "deterministic"}
"""Options of the trainer whose value may be a word; elsewhere a word names a folder or a writer."""

_WORD = re.compile(r"[\w:,-]+")  # neither a class nor a file
_DIGITS = re.compile(r"\d+")
_DOTTED = re.compile(r"([A-Za-z_]\w*\.)+[A-Za-z_]\w*")


class Named(NamedTuple):
    """Names that the user gives on the command line, and in the configuration files that it names.

    Attributes:
        classes: Classes, modules or packages, such as "mypackage.MyAttention".
        options: Options, such as "--trainer.profiler".
    """

    classes: list[str]
    options: set[str]

    @classmethod
    def by(cls, arguments: Sequence[str], trust: str | None) -> Named:
        """Collect it from the arguments after the command, and from the value of `--trust`.

        Example:
            >>> Named.by(["--model.attention", "mypackage.MyAttention"], "other").classes
            ['other', 'mypackage.MyAttention']
        """
        words, files = resolve(arguments)
        values: list[Any] = [word.rpartition("=")[2] for word in words]
        options = {word.partition("=")[0] for word in words}
        for path in files:
            config = read_yaml(path)
            values += _leaves(config)
            options |= {f"--trainer.{option}" for option in config.get("trainer") or {}}
        dotted = [value for value in values if isinstance(value, str) and _DOTTED.fullmatch(value)]
        return cls([*(trust.split(",") if trust else ()), *dotted], options)


class _Class(TypedDict):
    class_path: str


class _Chosen(_Class, total=False):
    init_args: dict[str, Any] | None


class _Sections(TypedDict):
    model: dict[str, Any]
    data: _Chosen


def sections_of(text: str, source: str | Path, trust: Sequence[str]) -> dict[str, Any]:
    """Take the sections of the model and the data out of the configuration of a checkpoint.

    Args:
        text: Configuration, as YAML.
        source: File that holds it, for errors.
        trust: Modules, packages or classes that it may name beside ours.

    Raises:
        InputError: if it is no configuration, or names a class that is not trusted.
    """
    config = parse_yaml(text, f"{source}: refused, its configuration")
    _check_sections(config, source, trust)
    return {section: config[section] for section in ("model", "data")}


def read_run_config(path: Path, named: Named) -> dict[str, Any]:
    """Read the configuration of a run directory, to train on with it.

    Args:
        path: File of the run directory.
        named: What the user named beside it.

    Raises:
        InputError: if it is no configuration, names a class that is not trusted, or an option of
            the trainer that writes to another folder.
    """
    config = read_yaml(path)
    _check_sections(config, path, named.classes)
    against = config.get("against") or {}
    require_structure(against, dict[str, dict[str, Any]], f"{path}: refused, against")
    for name, model in against.items():
        _check_model(model, f"{path}: refused, against.{name}", path, named.classes)
    trainer = config.get("trainer") or {}
    require_structure(trainer, dict[str, Any], f"{path}: refused, trainer")
    _refuse_dots(trainer, f"{path}: refused, trainer")
    config["trainer"] = {
        option: value
        for option, value in trainer.items()
        if f"--trainer.{option}" not in named.options
    }
    rest = {key: config[key] for key in config if key not in ("model", "data", "against")}
    _refuse_classes(rest, path, named.classes)
    for option, value in config["trainer"].items():
        allowed = _WORD.fullmatch if option in WORDS else _DIGITS.fullmatch
        if any(isinstance(leaf, str) and not allowed(leaf) for leaf in _leaves(value, plain=True)):
            raise InputError(
                f"{path}: refused, trainer.{option} is {value!r:.60}; if it is to be used: "
                f"--trainer.{option} VALUE"
            )
    return config


def _leaves(value: Any, plain: bool = False) -> Iterator[Any]:
    """Yield the values inside; with `plain` not those that describe a class."""
    if isinstance(value, dict) and not (plain and "class_path" in value):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, plain)
    else:
        yield value


def _check_sections(config: Mapping[str, Any], source: str | Path, trust: Sequence[str]) -> None:
    """Refuse a configuration that is none, or names a class which is neither ours nor trusted."""
    name = f"{source}: refused, its configuration"
    require_structure(config, _Sections, name)
    _refuse_dots(dict.fromkeys(config), name)
    _refuse_dots(config["data"], f"{name}.data")
    _check_option(config["data"], Task, source, trust)
    _check_model(config["model"], f"{name}.model", source, trust)


def _check_model(
    model: dict[str, Any], name: str, source: str | Path, trust: Sequence[str]
) -> None:
    _refuse_dots(model, name)
    _refuse_classes({key: model[key] for key in model if key not in MECHANISMS}, source, trust)
    for option in MECHANISMS:
        if isinstance(model.get(option), str):  # the parser would look for such a file
            model[option] = {"class_path": model[option]}
        require_structure(model.get(option), _Chosen | None, f"{name}.{option}")
        if model.get(option) is not None:
            _check_option(model[option], AttentionCore, source, trust)


def _check_option(
    option: Mapping[str, Any], base: type, source: str | Path, trust: Sequence[str]
) -> None:
    _check_class(source, option["class_path"], base, trust)
    rest = {key: option[key] for key in option if key != "class_path"}
    _refuse_classes(rest, source, trust)  # ours take no classes as options


def _refuse_classes(value: Any, source: str | Path, trust: Sequence[str]) -> None:
    """Refuse classes where no option is one: even the parser's error would import them."""
    for inner in _class_paths(value):
        _check_class(source, inner, None, trust)


def _refuse_dots(value: Any, name: str) -> None:
    """Refuse keys such as "attention.class_path", which the parser would take apart."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not (isinstance(key, str) and key.isidentifier()) or key == "config":
                raise InputError(f"{name}: {key!r:.60} is no name of an option")
            _refuse_dots(inner, name)
    elif isinstance(value, list):
        for inner in value:
            _refuse_dots(inner, name)


def foreign_packages(config: Mapping[str, Any]) -> list[str]:
    """List the packages, not ours, of the classes that a run's model and data name."""
    paths = _class_paths([config["model"], config["data"]])
    packages = {str(path).partition(".")[0] for path in paths if "." in str(path)}
    return sorted(packages - {"clusterformer"})


def _class_paths(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        if "class_path" in value:
            yield value["class_path"]
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _class_paths(inner)


def _check_class(
    source: str | Path, class_path: Any, base: type | None, trust: Sequence[str]
) -> None:
    if any(f"{class_path}.".startswith(f"{name}.") for name in trust):
        return
    module, _, name = str(class_path).rpartition(".")
    if module.startswith("clusterformer."):
        with suppress(ImportError):
            import_module(module)
    found = getattr(sys.modules.get(module), name, None)
    if base and name in subclasses(base) and not module:  # a short name is of what is imported
        return
    if not (base and isinstance(found, type) and issubclass(found, base)):
        package = str(class_path).partition(".")[0]
        raise InputError(
            f"{source}: refused, {class_path} is no class of clusterformer; if you trust this file "
            f"and that package: --trust {package}, or in Python: import {package}"
        )
