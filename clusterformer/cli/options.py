"""Options of `fit`, `validate` and `test`: LightningCLI with errors that fit in one line."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NoReturn

import yaml
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.exceptions import MisconfigurationException

import clusterformer.tasks
from clusterformer.cli.logs import quieten, show_notes
from clusterformer.cli.parser_messages import explain, offender
from clusterformer.errors import InputError
from clusterformer.module import ClusterFormer
from clusterformer.task import Task
from clusterformer.training.checkpoints import CheckpointFiles
from clusterformer.training.config_files import place, resolve
from clusterformer.training.progress import progress

TRAINER_DEFAULTS = {
    "gradient_clip_val": 1.0,
    "log_every_n_steps": 10,
    "num_sanity_val_steps": 0,
    "use_distributed_sampler": False,
    "enable_model_summary": False,
}


class Parser(LightningArgumentParser):
    """Says in one line what is wrong, and what would be right."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:
            super().error(message, ex)
        raise InputError(explain(message, self._option_string_actions)) from ex


class Options(LightningCLI):
    """The parsed options, and the model, task and trainer made from them.

    Args:
        arguments: Command line, without the command.
        fitting: Whether the options of a training belong to it.
    """

    def __init__(self, arguments: list[str], *, fitting: bool) -> None:
        self._fitting = fitting
        arguments, self._files = resolve(arguments)
        arguments = ["--help" if argument == "--help-all" else argument for argument in arguments]
        for module in iter_modules(clusterformer.tasks.__path__):
            import_module(f"clusterformer.tasks.{module.name}")
        quieten()
        show_notes()
        super().__init__(
            ClusterFormer,
            Task,
            save_config_callback=None,
            trainer_defaults=TRAINER_DEFAULTS,
            seed_everything_default=0,
            parser_class=Parser,
            parser_kwargs={"allow_abbrev": False},
            subclass_mode_data=True,
            args=arguments,
            run=False,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        _whole_numbers_first(parser)
        if self._fitting:
            parser.add_argument("--runs", default="runs", help="Parent of the run folders.")
            parser.add_argument("--wandb", action="store_true", help="Log to Weights & Biases too.")
            parser.add_argument(
                "--checkpoint_every",
                type=int,
                default=500,
                help="Steps between two checkpoints within an epoch.",
            )
            parser.add_argument(
                "--keep",
                type=int,
                default=0,
                help="Last and best validated weights to keep, for --average of test and predict.",
            )
            parser.add_argument(
                "--against",
                type=dict[str, dict] | None,
                default=None,
                help="Other models by name, to train likewise and set beside it in a table.",
            )

    @property
    def name(self) -> str:
        """Of the run: those of the configurations, or the task's."""
        return "-".join(path.stem for path in self._files) or type(self.datamodule).__name__.lower()

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        try:
            self.config = parser.parse_args(args)
        except InputError as error:
            raise InputError(f"{place(offender(str(error)), self._files)}{error}") from error

    def instantiate_classes(self) -> None:
        try:
            super().instantiate_classes()
        except (ValueError, MisconfigurationException) as error:
            raise _own_words(error) from error

    def instantiate_trainer(self, **_: Any) -> Trainer:
        """None yet: it depends on the run folder; see `make_trainer`."""
        return None  # type: ignore[return-value]

    def make_trainer(self, callbacks: list[Callback], loggers: list[Logger]) -> Trainer:
        """The trainer that the options describe, with our callbacks and loggers beside theirs."""
        options = dict(self.config_init["trainer"])
        if options["enable_progress_bar"] is not False:
            callbacks = [*callbacks, progress()]
        for key, ours in (
            ("callbacks", callbacks),
            ("logger", loggers),
            ("plugins", [CheckpointFiles()]),
        ):
            theirs = options[key]
            if not isinstance(theirs, (list, tuple)):
                theirs = [] if theirs is None or isinstance(theirs, bool) else [theirs]
            options[key] = [*theirs, *ours]
        try:
            return Trainer(**options)
        except (ValueError, MisconfigurationException) as error:
            raise InputError(str(error)) from error

    def yaml(self, *sections: str) -> str:
        """The resolved configuration, or some of its sections."""
        resolved = yaml.safe_load(self.parser.dump(self.config, skip_unset=False))
        kept = {key: resolved[key] for key in sections or resolved if key != "config"}
        return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)


def _whole_numbers_first(parser: LightningArgumentParser) -> None:
    """Let `--trainer.limit_val_batches 1` be one batch, and 1.0 all of them.

    The trainer declares int | float, but typing caches unions whatever their order, so that
    jsonargparse may be given float | int and make 1.0 of both.
    """
    for action in parser._actions:
        hint = getattr(action, "_typehint", None)
        for ordered in (int | float, int | float | None):
            if hint == ordered:
                action._typehint = ordered  # type: ignore[attr-defined]


def _own_words(error: BaseException) -> InputError:
    """What the task or model said, out of what jsonargparse wraps around it."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, InputError):
            break
        inner = inner.__cause__ or inner.__context__
    return InputError(str(inner or error))


def take(arguments: list[str], option: str) -> tuple[str | None, list[str]]:
    """Take `option VALUE` or `option=VALUE` out of the arguments.

    Returns:
        The value, None if the option is not there, and the other arguments.
    """
    value = None
    rest: list[str] = []
    waiting = False
    for argument in arguments:
        if waiting:
            value, waiting = argument, False
        elif argument == option:
            waiting = True
        elif argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
        else:
            rest.append(argument)
    if waiting or value == "":
        raise InputError(f"{option} needs a value")
    return value, rest
