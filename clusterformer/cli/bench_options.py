"""The options that `clusterformer bench` and its subcommands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal

from clusterformer.cli.arguments import Arguments, set_threads
from clusterformer.cli.output import announce_replacement
from clusterformer.errors import InputError


def report_file(name: str) -> Path:
    """Read the path of a report, before anything is measured for it."""
    path = Path(name)
    if path.suffix.lower() == ".png" or path.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file for JSON, got {name}")
    announce_replacement("--out", path)
    return path


class BenchArguments(Arguments):
    """The options that `bench` and most of its subcommands share.

    Args:
        read: Those of "mechanisms", "dtype", "repeats" and "memory" that the command reads; any
            other is refused.
    """

    def __init__(self, *read: Literal["mechanisms", "dtype", "repeats", "memory"]) -> None:
        super().__init__()
        if "mechanisms" in read:
            self.add_argument("--mechanisms", nargs="+")
        if "dtype" in read:
            self.add_argument("--dtype", choices=["fp32", "bf16", "fp16"], default="fp32")
        if "repeats" in read:
            self.add_number("--repeats", default=7)
        if "memory" in read:
            self.add_argument("--no-memory", dest="memory", action="store_false")
        self.add_number("--threads", minimum=0)
        self.add_argument("--out", type=report_file)

    def parse(self, arguments: list[str]) -> argparse.Namespace:
        """Parse, and set the number of threads.

        Raises:
            InputError: if the heads do not divide the width.
        """
        options = self.parse_args(arguments)
        if "d_model" in options and options.d_model % options.num_heads:
            sizes = f"{options.num_heads} and {options.d_model}"
            raise InputError(f"--num_heads must divide --d_model, got {sizes}")
        set_threads(options.threads)
        return options

    def parse_beside(self, arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
        """Parse likewise; the arguments that are no options of these are returned, too."""
        options, rest = self.parse_known_args(arguments)
        set_threads(options.threads)
        return options, rest
