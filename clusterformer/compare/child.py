"""A run that `compare` started: it is alone in its cell, and ends with `compare`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock

PARENT, LOCK = "CLUSTERFORMER_COMPARE_PROCESS", "CLUSTERFORMER_COMPARE_LOCK"
"""Variables that tell a child the number of the process of `compare`, and the file of its lock."""

POLL_SECONDS = 0.5
GRACE_SECONDS = 20.0
"""Time that a child without a parent has to write a checkpoint."""

_held: list[FileLock] = []  # until the process ends, however it ends


def describe_parent(cell: Path) -> Mapping[str, str]:
    """Make the variables of a child: this process, and the directory that the child trains in."""
    return {PARENT: str(os.getpid()), LOCK: str(cell.absolute() / "training.lock")}


def end_with_parent() -> None:
    """Tie this process to the `compare` that started it; without one nothing happens.

    When the parent is gone, however it ended, this process gets a SIGINT, so that it writes a
    checkpoint, and after a time of grace a SIGKILL. Until it is gone it holds the lock of its
    cell: another training there waits. The variables are removed: processes that this one starts
    are not tied to `compare`.
    """
    parent, lock = os.environ.pop(PARENT, None), os.environ.pop(LOCK, None)
    if parent is None or lock is None:
        return
    threading.Thread(target=_watch, args=(int(parent),), daemon=True).start()
    _held.append(FileLock(lock))
    _held[-1].acquire()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM if os.name == "nt" else signal.SIGKILL)
