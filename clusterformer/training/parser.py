"""The parser of a model and a task, for command lines, YAML files and checkpoints."""

from __future__ import annotations

from typing import NoReturn

from jsonargparse import ActionConfigFile, Namespace
from lightning.pytorch.cli import LightningArgumentParser

from clusterformer.errors import InputError, making, require_finite
from clusterformer.module import ClusterFormer
from clusterformer.task import Task
from clusterformer.training.parser_messages import explain, refuse_abstract

MECHANISMS = ("attention", "outer_attention", "decoder_attention", "cross_attention")
"""Options of the model that choose a mechanism."""


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
        InputError: if a class is abstract, a number is not finite, or a constructor refuses one.
    """
    require_finite(config.as_dict())
    for option in ("data", *(f"model.{name}" for name in MECHANISMS)):
        chosen = config.get(option)
        if chosen is not None and "class_path" in chosen:
            refuse_abstract(option, chosen["class_path"])
    with making("options"):
        return parser.instantiate_classes(config)
