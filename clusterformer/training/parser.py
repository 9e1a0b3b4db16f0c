"""The parser of a model and a task, for command lines, YAML files and checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Sequence, Set
from types import NoneType
from typing import Any, NoReturn, get_args

from jsonargparse import ActionConfigFile, Namespace
from lightning.pytorch.cli import LightningArgumentParser

from clusterformer.errors import InputError, making, require_finite
from clusterformer.module import ClusterFormer
from clusterformer.task import Task
from clusterformer.training.mechanism_defaults import (
    MECHANISMS,
    given_options,
    restore_defaults,
)
from clusterformer.training.parser_messages import explain, refuse_abstract


class Parser(LightningArgumentParser):
    """A parser whose errors fit in one line.

    A mechanism that replaces another has its own defaults: see `restore_defaults`.
    """

    _given: Set[str] | None = None  # while it parses

    def __init__(self, *others: Any, **options: Any) -> None:
        super().__init__(*others, **{"prog": "clusterformer", **options})

    def parse_args(self, args: Sequence[str] | None = None, *others: Any, **options: Any) -> Any:  # type: ignore[override]
        self._given = given = given_options(sys.argv[1:] if args is None else args)
        try:
            config = super().parse_args(args, *others, **options)
        finally:
            self._given = None
        restore_defaults(config, given)
        return config

    def dump(self, cfg: Namespace, *others: Any, **options: Any) -> str:
        """Write a configuration; `--print_config` does so before `parse_args` has ended."""
        config = cfg.clone()
        if self._given is not None:
            restore_defaults(config, self._given)
        return super().dump(config, *others, **options)

    def add_class_arguments(self, *args: Any, **options: Any) -> list[str]:
        """Add the options of a class; none takes its value from a file of that name.

        With `sub_configs`, `--trainer.accelerator cpu` reads a file `cpu` of the working folder.
        """
        return super().add_class_arguments(*args, **{**options, "sub_configs": False})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # a parser that jsonargparse makes for a nested class
            super().error(message, ex)
        raise InputError(explain(message, self._option_string_actions)) from ex


def make_parser() -> Parser:
    """Make the parser of the options `--config`, `--model.*` and `--data.*`."""
    parser = Parser(allow_abbrev=False)
    parser.add_argument("-c", "--config", action=ActionConfigFile, help="YAML file of options.")
    parser.add_lightning_class_args(ClusterFormer, "model")
    parser.add_lightning_class_args(Task, "data", subclass_mode=True)
    return parser


def instantiate(parser: Parser, config: Namespace) -> Namespace:
    """Make the objects that a parsed configuration describes.

    Raises:
        InputError: if a class is abstract, a number is not finite, or a constructor refuses one.
    """
    require_finite(config.as_dict())
    _refuse_null(parser, config)
    for option in ("data", *(f"model.{name}" for name in MECHANISMS)):
        chosen = config.get(option)
        if chosen is not None and "class_path" in chosen:
            refuse_abstract(option, chosen["class_path"])
    with making("options"):
        return parser.instantiate_classes(config)


def _refuse_null(parser: Parser, config: Namespace) -> None:
    """Refuse null where a type does not have it, which jsonargparse lets pass in files.

    Raises:
        InputError: with the option.
    """
    for action in parser._actions:
        hint = getattr(action, "_typehint", None)
        optional = hint is None or hint is Any or NoneType in get_args(hint)
        named = action.default is not None and action.dest in config
        if named and not optional and config[action.dest] is None:
            raise InputError(f"{action.dest} must not be null; leave it out for its default")
