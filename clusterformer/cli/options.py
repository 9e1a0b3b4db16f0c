"""Options of `fit`, and of the commands on a checkpoint, with errors that fit in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import yaml
from lightning.pytorch import Callback, Trainer, seed_everything

from clusterformer.api import import_tasks
from clusterformer.cli.logs import quieten, show_notes
from clusterformer.errors import InputError, making, require_finite
from clusterformer.module import ClusterFormer
from clusterformer.task import Task
from clusterformer.training.config_files import locate, resolve, to_argument
from clusterformer.training.fit import make_trainer
from clusterformer.training.monitoring import mode_of
from clusterformer.training.parser import Parser, instantiate, make_parser
from clusterformer.training.parser_messages import offender
from clusterformer.training.trainer_options import know_node_by_hand
from clusterformer.working_folder import import_from_working_folder

TRAINER_DEFAULTS = {
    "gradient_clip_val": 1.0,
    "log_every_n_steps": 10,
    "num_sanity_val_steps": 0,
    "use_distributed_sampler": False,
    "enable_model_summary": False,
}


class Options:
    """The parsed options of a command line, and the model and task that they describe.

    Args:
        arguments: Command line, without the command.
        fitting: Whether the options of a training belong to it.
        base: Configuration that the arguments change, such as that of a checkpoint.

    Attributes:
        config: The options, nested by section.
        model: The model, without its network.
        task: The task.
    """

    def __init__(
        self, arguments: Sequence[str], *, fitting: bool, base: Mapping[str, Any] | None = None
    ) -> None:
        arguments, self._files = resolve(arguments)
        arguments = ["--help" if argument == "--help-all" else argument for argument in arguments]
        if base is not None:
            arguments = ["--config", to_argument(base), *arguments]
        import_tasks()
        import_from_working_folder()
        quieten()
        show_notes()
        self.parser = _parser(fitting)
        try:
            with making("options"):
                self.config = self.parser.parse_args(arguments)
        except InputError as error:
            raise InputError(f"{locate(offender(str(error)), self._files)}{error}") from error
        know_node_by_hand(self.config["trainer"]["num_nodes"])
        with making("seed_everything"):
            seed_everything(self.config["seed_everything"], workers=True)
        made = instantiate(self.parser, self.config)
        self.model: ClusterFormer = made["model"]
        self.task: Task = made["data"]
        self.task.pretrained = self.model.transformer_config.pretrained
        self.trainer_options: dict[str, Any] = dict(made["trainer"])
        monitor = self.config.get("monitor") or self.task.monitor
        if monitor != self.task.monitor:
            self.task.monitor, self.task.mode = monitor, mode_of(monitor)
            # a batch of validation before training tells whether anything is logged by that name
            self.trainer_options["num_sanity_val_steps"] = (
                self.trainer_options["num_sanity_val_steps"] or 1
            )

    @property
    def name(self) -> str:
        """Name of the runs: that of the configurations, or the task's."""
        return "-".join(path.stem for path in self._files) or type(self.task).__name__.lower()

    def make_trainer(self, *callbacks: Callback) -> Trainer:
        """Make the trainer that the options describe, with further callbacks."""
        return make_trainer(self.trainer_options, callbacks)

    def resolved(self) -> dict[str, Any]:
        """Return the whole configuration as plain values, defaults included."""
        with making("options of config.yaml"):  # such as a callback's that YAML has no form for
            found = yaml.safe_load(self.parser.dump(self.config, skip_unset=False))
        return {section: value for section, value in found.items() if section != "config"}


@cache  # reading the signatures of Trainer and model takes as long as parsing
def _parser(fitting: bool) -> Parser:
    parser = make_parser()
    parser.add_argument(
        "--seed_everything", type=int, default=0, help="Seed of weights, dropout and batches."
    )
    parser.add_lightning_class_args(Trainer, "trainer")
    parser.set_defaults({f"trainer.{name}": value for name, value in TRAINER_DEFAULTS.items()})
    _whole_numbers_first(parser)
    if fitting:
        parser.add_argument(
            "--runs", type=str, default="runs", help="Parent of the run directories."
        )
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
            help="Number of last and of best validated weights to keep, for --average.",
        )
        parser.add_argument(
            "--average",
            type=int,
            default=0,
            help="Number of last validations, the mean of whose weights is tested and used "
            "instead of the best checkpoint; 0 for none.",
        )
        parser.add_argument(
            "--patience",
            type=int | None,
            default=None,
            help="Number of validations without gain after which training stops.",
        )
        parser.add_argument(
            "--monitor",
            type=str | None,
            default=None,
            help="Logged value that chooses the best checkpoint, such as val/f1; the task's own "
            "by default.",
        )
        parser.add_argument(
            "--baselines",
            type=bool,
            default=True,
            help="Set the task's simple methods beside the result, such as a linear model.",
        )
        parser.add_argument(
            "--pictures",
            type=bool,
            default=True,
            help="Draw learning curves and clusters into the run directory.",
        )
        parser.add_argument(
            "--method",
            type=str | None,
            default=None,
            help="Simple method of the task to train instead of the network, such as "
            "'TF-IDF + linear SVM'.",
        )
        parser.add_argument(
            "--against",
            type=dict[str, dict] | None,
            default=None,
            help="Other models by name, to train likewise and compare in a table.",
        )
    return parser


def _whole_numbers_first(parser: Parser) -> None:
    """Let `--trainer.limit_val_batches 1` be one batch, and 1.0 all of them.

    The trainer declares int | float, but typing caches unions whatever their order, so that
    jsonargparse may be given float | int and make 1.0 of both.
    """
    for action in parser._actions:
        hint = getattr(action, "_typehint", None)
        for ordered in (int | float, int | float | None):
            if hint == ordered:
                action._typehint = ordered  # type: ignore[attr-defined]


def pop_option(
    arguments: Sequence[str],
    option: str,
    *,
    may_be_empty: bool = False,
    several: bool = False,
) -> tuple[str | None, list[str]]:
    """Take `option VALUE` or `option=VALUE` out of the arguments.

    Args:
        arguments: Command line.
        option: Name of the option.
        may_be_empty: Allow "" for a value.
        several: Join the values of an option that is repeated with commas; else the last counts.

    Returns:
        The value, None if the option is not there, and the other arguments.
    """
    values: list[str] = []
    rest: list[str] = []
    waiting = False
    for argument in arguments:
        if waiting:
            values.append(argument)
            waiting = False
        elif argument == option:
            waiting = True
        elif argument.startswith(f"{option}="):
            values.append(argument.partition("=")[2])
        else:
            rest.append(argument)
    if waiting or ("" in values and not may_be_empty):
        raise InputError(f"{option} needs a value")
    if not values:
        return None, rest
    return ",".join(values) if several else values[-1], rest


Number = TypeVar("Number", int, float)


def pop_number(
    arguments: Sequence[str], option: str, kind: type[Number]
) -> tuple[Number | None, list[str]]:
    """Take a number out of the arguments, as `pop_option` does."""
    value, rest = pop_option(arguments, option)
    try:
        number = None if value is None else kind(value)
    except ValueError:
        raise InputError(f"{option} is a number ({kind.__name__}), got {value!r}") from None
    require_finite({option: number})
    return number, rest


def make_model_and_task(arguments: list[str]) -> tuple[ClusterFormer, Task]:
    """Make the model and the task that the options of `fit` describe."""
    options = Options(arguments, fitting=True)
    return options.model, options.task
