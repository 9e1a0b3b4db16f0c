"""A parser for commands without a model: errors in one line, nothing that is slow to import."""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn

from clusterformer.errors import InputError, require_at_least, require_finite
from clusterformer.wording import did_you_mean


def available_device(name: str) -> str:
    """Read the name of a device of this machine: cpu, cuda, or a GPU such as cuda:1."""
    from clusterformer.devices import find_device  # slow

    try:
        find_device(name)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name


def set_threads(number: int | None) -> None:
    """Set the number of CPU threads; None or 0 leaves it as it is."""
    if number:
        import torch  # slow

        torch.set_num_threads(number)


class Arguments(argparse.ArgumentParser):
    """A parser without abbreviations; its help is the command's HELP."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self._minimums: dict[str, float] = {}

    def add_number(
        self, flag: str, *, minimum: float = 1, type: type[float] = int, **options: Any
    ) -> None:
        """Add an option that is a number, or several, none below a minimum."""
        self._minimums[self.add_argument(flag, type=type, **options).dest] = minimum

    def error(self, message: str) -> NoReturn:
        if unknown := re.match(r"unrecognized arguments: (--[^\s=]+)", message):
            nearest = did_you_mean(unknown[1], self._option_string_actions)
            raise InputError(f"no option {unknown[1]}; {nearest or '--help lists all'}")
        raise InputError(message)

    def parse_known_args(  # type: ignore[override]
        self, *given: Any, **kwargs: Any
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse, and refuse numbers that are not finite, or below their minimum.

        Returns:
            The options, and the arguments that are none of them; `parse_args` refuses these.

        Raises:
            InputError: if an option misses a value, or has one that is not allowed.
        """
        options, rest = super().parse_known_args(*given, **kwargs)
        for name, value in vars(options).items():
            for each in value if isinstance(value, list) else [value]:
                require_finite({f"--{name}": each})
        for name, minimum in self._minimums.items():
            value = getattr(options, name)
            lowest = min(value) if isinstance(value, list) else value
            require_at_least(minimum, **{f"--{name}": lowest})
        return options, rest
