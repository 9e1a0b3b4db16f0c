"""Several processes that train together, as torchrun starts them, but forked: without imports."""

import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from forked import FORK
from lightning.pytorch.utilities import rank_zero_only

from clusterformer.cli.main import main


def start_together(
    number: int, arguments: Sequence[str], log: Path, limits: Mapping[int, int] | None = None
) -> list[BaseProcess]:
    """Start `clusterformer ARGUMENTS` in so many processes; all write to one log.

    `limits` are the bytes of the largest file that some of them may write.
    """
    limits = limits or {}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    devices = f"--trainer.devices={number}"
    processes = [
        FORK.Process(
            target=_run, args=(rank, number, port, [*arguments, devices], log, limits.get(rank))
        )
        for rank in range(number)
    ]
    for process in processes:
        process.start()
    return processes


def train_together(
    number: int, arguments: Sequence[str], log: Path, limits: Mapping[int, int] | None = None
) -> list[int | None]:
    """Run `clusterformer ARGUMENTS` in so many processes, and return their exit codes."""
    processes = start_together(number, arguments, log, limits)
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def _run(
    rank: int, number: int, port: int, arguments: list[str], log: Path, limit: int | None
) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_RUN_ID="test",
        WORLD_SIZE=str(number),
        LOCAL_WORLD_SIZE=str(number),
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        GROUP_RANK="0",
    )
    rank_zero_only.rank = rank  # Lightning read it when it was imported
    if limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    sys.exit(main(arguments))
