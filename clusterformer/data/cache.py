"""Where data sets lie, and where what was computed once is kept for the next run."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """This project's folder in the user's cache; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "clusterformer"


def data_folder(root: str | Path | None = None) -> Path:
    """Folder of the named data sets: `root`, else $CLUSTERFORMER_DATA, else the user's cache."""
    chosen = root or os.environ.get("CLUSTERFORMER_DATA")
    return Path(chosen).expanduser() if chosen else cache_folder()


@contextmanager
def alone(path: Path, waiting: Callable[[str], None] = _log.info) -> Iterator[None]:
    """Wait until no other process makes `path`; the lock of one that dies opens by itself.

    Args:
        path: Beside it, hidden, lies the lock.
        waiting: Told once, if there is another.
    """
    lock = _lock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        waiting(f"{path.name}: another process prepares it, waiting")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def kept(folder: Path, fill: Callable[[Path], None]) -> Path:
    """A folder of the cache; if it is not there yet, `fill` writes into an empty one first.

    It appears whole or not at all. Of several processes one works and the others wait. What a
    killed one left is taken away by the next that makes a folder beside it.
    """
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        with alone(folder):
            draft = _draft(folder)
            shutil.rmtree(draft, ignore_errors=True)
            if not folder.exists():
                draft.mkdir()
                try:
                    fill(draft)
                    draft.rename(folder)
                finally:
                    shutil.rmtree(draft, ignore_errors=True)
    return folder


def _sweep(shelf: Path) -> None:
    """Take away drafts that nobody writes any more."""
    for draft in shelf.glob(f".*{_DRAFT}"):
        lock = _lock(draft.with_name(draft.name.removesuffix(_DRAFT).removeprefix(".")))
        try:
            with lock.acquire(timeout=0):
                shutil.rmtree(draft, ignore_errors=True)
        except Timeout:
            pass


_DRAFT = ".draft"


def _draft(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}{_DRAFT}")


def _lock(path: Path) -> FileLock:
    return FileLock(path.with_name(f".{path.name}.lock"))
