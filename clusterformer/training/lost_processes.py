"""A process of several that dies is named in one line, and the others end with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.environments import LightningEnvironment

from clusterformer.errors import InputError

_LOST = re.compile(r"gloo|nccl|connection (closed|reset)|socket|peer|timed out", re.I)
"""Words of torch.distributed's errors when another process has gone."""

_INTERVAL = 0.2  # seconds


class ProcessWatch(Callback):
    """A callback by which the first process sees that one which it started was killed.

    Lightning looks too, every five seconds, and then kills the first process without a word.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._watching = False
        self._lock = threading.Lock()
        self._parent = os.getppid()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if _launched(trainer) and not self._watching:
            self._watching = True
            threading.Thread(target=self._watch, args=(trainer,), daemon=True).start()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._ended.set()

    @contextmanager
    def until_the_end(self, trainer: Trainer) -> Iterator[None]:
        """Watch until the end of what is no training, such as the test.

        Raises:
            InputError: as `raise_if_lost`.
        """
        try:
            yield
        except Exception as error:
            self.raise_if_lost(trainer, error)
            raise
        finally:
            self._ended.set()

    def raise_if_lost(self, trainer: Trainer, error: BaseException) -> None:
        """Name the process that died, if an error is that of torch.distributed about it.

        Raises:
            InputError: in a process that others started; the first one ends here.
        """
        ours = isinstance(error, InputError)  # it says what is wrong, perhaps with such a word
        if trainer.world_size == 1 or ours or not _LOST.search(str(error)):
            return
        if _exit_codes(trainer, 1.0):
            self._end(trainer)
        found = [] if os.getppid() == self._parent else _starter(trainer)
        raise InputError(_described(trainer, found)) from error

    def _watch(self, trainer: Trainer) -> None:
        while not self._ended.wait(_INTERVAL):
            if any(code < 0 for code in _exit_codes(trainer).values()):
                self._end(trainer)

    def _end(self, trainer: Trainer) -> NoReturn:
        """Print the line, end the other processes, and this one."""
        with self._lock:  # the thread or the training, whichever comes first
            codes = _exit_codes(trainer)
            message = _described(trainer, [_how(rank, code) for rank, code in codes.items()])
            for process in _launched(trainer):
                process.kill()
            print(f"clusterformer: error: {message}", file=sys.stderr, flush=True)
            os._exit(2)


def _launched(trainer: Trainer) -> list[subprocess.Popen]:
    """Processes that this one started, from rank 1 on."""
    return getattr(trainer.strategy.launcher, "procs", [])


def _exit_codes(trainer: Trainer, timeout: float = 0.0) -> dict[int, int]:
    """Exit codes, by rank, of the started processes that have ended."""
    codes: dict[int, int] = {}
    for rank, process in enumerate(_launched(trainer), start=1):
        with suppress(subprocess.TimeoutExpired):
            codes[rank] = process.wait(timeout)
    return codes


def _starter(trainer: Trainer) -> list[str]:
    """Name the process that started this one, now gone; nothing if torchrun or Slurm did."""
    environment = getattr(trainer.strategy, "cluster_environment", None)
    if not isinstance(environment, LightningEnvironment):
        return []
    return [f"process {trainer.node_rank * trainer.num_devices} ended"]


def _how(rank: int, code: int) -> str:
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"process {rank} {how}"


def _described(trainer: Trainer, found: list[str]) -> str:
    who = f"{' and '.join(found) or 'another process ended'}, of {trainer.world_size}"
    if trainer.global_step == 0:
        return f"{who} that worked together; start them again"
    return (
        f"{who} that trained together, at step {trainer.global_step}; "
        "go on with --resume from the last checkpoint"
    )
