"""A command line whose errors fit in one line; it needs nothing that is slow to load."""

from __future__ import annotations

import argparse
from typing import NoReturn

from clusterformer.errors import InputError


class Arguments(argparse.ArgumentParser):
    """Options of a command, without abbreviations; its help is the command's HELP."""

    def __init__(self, command: str) -> None:
        super().__init__(prog=f"clusterformer {command}", add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise InputError(message)
