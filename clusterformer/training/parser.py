"""The parser of a model and a task, for command lines, YAML files and checkpoints."""

from __future__ import annotations

from typing import NoReturn

from jsonargparse import ActionConfigFile, Namespace
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from clusterformer.errors import InputError
from clusterformer.module import ClusterFormer
from clusterformer.task import Task
from clusterformer.training.parser_messages import explain


class Parser(LightningArgumentParser):
    """A parser whose errors fit in one line."""

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
        InputError: if a constructor refuses a value.
    """
    try:
        return parser.instantiate_classes(config)
    except (ValueError, MisconfigurationException) as error:
        raise _cause(error) from error


def _cause(error: BaseException) -> InputError:
    """Find the error of the model or task inside what jsonargparse wraps around it."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, InputError):
            return inner
        inner = inner.__cause__ or inner.__context__
    return InputError(str(error))
