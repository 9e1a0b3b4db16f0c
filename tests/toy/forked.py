"""Child processes as forks of the test's own: they spare seconds of imports."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from typing import IO, Any

import torch

from clusterformer.cli.main import main

FORK = multiprocessing.get_context("fork")


def in_processes(number: int, function: Callable[..., Any], *arguments: object) -> list[Any]:
    """Results of `function(rank, *arguments)` in so many processes that wait for one another."""
    with ProcessPoolExecutor(number, FORK) as pool:
        return list(pool.map(function, range(number), *map(repeat, arguments)))


class Forked(FORK.Process):
    """`python -m clusterformer ...`, with the part of `subprocess.Popen` that we use."""

    def __init__(
        self,
        command: list[str],
        *,
        stdin: int | None = None,  # nobody writes to it
        stdout: IO[bytes] | None = None,
        stderr: int | None = None,  # goes where stdout goes
        env: Mapping[str, str] | None = None,
        start_new_session: bool = False,
    ) -> None:
        assert command[:3] == [sys.executable, "-m", "clusterformer"]
        super().__init__(target=_run, args=(command[3:], stdout, env or {}, start_new_session))
        self.start()

    @property
    def returncode(self) -> int | None:
        return self.exitcode

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self) -> int | None:
        self.join()
        return self.exitcode


def _run(
    arguments: list[str], output: IO[bytes] | None, environment: Mapping[str, str], session: bool
) -> None:
    if session:
        os.setsid()
    os.environ.update(environment)
    # a shell that starts the tests in the background makes them ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if output is not None:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    sys.exit(main(arguments))


# CUDA does not survive a fork
Process = subprocess.Popen if torch.cuda.is_available() else Forked
