"""`clusterformer COMMAND ...`: runs the module of the command, and prints errors in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from pathlib import Path

from clusterformer.cli.output import outlive_readers, require_whole_output, restored_streams
from clusterformer.cli.print_once import print_once
from clusterformer.errors import InputError
from clusterformer.whole_files import naming
from clusterformer.wording import did_you_mean

COMMANDS = {
    "fit": "train a model; writes a run directory",
    "validate": "measure a trained model on the validation data",
    "test": "measure a trained model on the test data",
    "predict": "label your own texts with a trained model",
    "translate": "translate your own texts with a trained model",
    "generate": "continue a text with a trained language model",
    "export": "write a trained model as a folder for transformers",
    "convert": "give a pretrained model of transformers another attention",
    "prepare": "fetch named data sets",
    "cluster": "cluster any points, and compare methods",
    "compare": "train the models of a file, write a table and a page",
    "bench": "measure time and memory of attention",
}
"""Each is a module of this package with HELP, `help_for(arguments)` if it has two, and
`run(arguments)`, which imports torch late."""

ANSWERS = {"predict", "translate", "generate"}
"""Commands whose work is their output: they end when nobody reads it, as `bench` without `--out`
does. A failure to write it is told with its name."""

DEBUG = "CLUSTERFORMER_DEBUG"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Arguments after the program's name; None for those of the process.

    Returns:
        Exit code: 0 success, 2 bad input (one line on standard error), 130 interrupted.
    """
    # set before torch loads: its notes about DDP and NNPACK are for developers
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    with restored_streams():
        return _run(list(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: list[str]) -> int:
    try:
        _dispatch(arguments)
        require_whole_output()
    except BrokenPipeError:
        # the reader of our output closed it; Python would complain about it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    except (InputError, OSError) as error:
        if os.environ.get(DEBUG):
            raise
        print_once(f"clusterformer: error: {_one_line(error)}")
        return 2
    return 0


def _dispatch(arguments: list[str]) -> None:
    if any("\0" in argument for argument in arguments):  # no file or text of a command has one
        raise InputError("an argument holds a null byte")
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return
    if arguments[0] == "--version":
        from clusterformer import __version__

        print(__version__)
        return
    name, *rest = arguments
    _require_one_of(COMMANDS, name, "command")
    command = import_module(f"clusterformer.cli.{name}")
    subcommands = getattr(command, "SUBCOMMANDS", ())
    if subcommands and rest and not rest[0].startswith("-"):
        _require_one_of(subcommands, rest[0], f"subcommand of {name}")
        command, rest = import_module(f"clusterformer.cli.{name}_{rest[0]}"), rest[1:]
    if "-h" in rest or "--help" in rest:
        print(getattr(command, "help_for", lambda _: command.HELP)(rest).strip())
        return
    if name in ANSWERS:
        with naming(Path("standard output")):  # all else that they read or write has a name
            command.run(rest)
        return
    if name != "bench" or any(argument.partition("=")[0] == "--out" for argument in rest):
        outlive_readers()
    command.run(rest)


def _require_one_of(names: Collection[str], name: str, kind: str) -> None:
    if name not in names:
        hint = did_you_mean(name, names) or f"there is {', '.join(names)}"
        raise InputError(f"no {kind} {name!r}; {hint}")


def usage() -> str:
    """Return the help of the whole program."""
    commands = "\n".join(f"  {name:<10} {summary}" for name, summary in COMMANDS.items())
    return f"""\
usage: clusterformer COMMAND [options]

Transformers whose attention learns to cluster.

commands:
{commands}

Start with:  clusterformer fit --config quickstart.yaml
Then:        clusterformer COMMAND --help
{DEBUG}=1 shows the traceback of an error."""


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())
