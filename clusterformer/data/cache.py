"""The user's cache: folders that are computed once and found by later runs, and their locks."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

_log = logging.getLogger(__name__)

_DRAFT = ".draft"


def cache_folder() -> Path:
    """This project's folder in the user's cache; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "clusterformer"


@contextmanager
def lock(path: Path, report: Callable[[str], None] = _log.info) -> Iterator[None]:
    """Keep other processes from making `path`, and wait while one does.

    The lock of a process that dies opens by itself.

    Args:
        path: File or folder to be made; the lock is a hidden file beside it.
        report: Function that gets one message if there is another process to wait for.
    """
    file_lock = _file_lock(path)
    try:
        file_lock.acquire(timeout=0)
    except Timeout:
        report(f"{path.name}: another process prepares it, waiting")
        file_lock.acquire()
    try:
        yield
    finally:
        file_lock.release()


def cached_folder(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Return a folder of the cache; if it does not exist, let `fill` write an empty one first.

    It appears whole or not at all. Of several processes one fills it and the others wait. Remains
    of a killed process are removed by the next one that makes a folder beside them.
    """
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_drafts(folder.parent)
        with lock(folder):
            draft = folder.with_name(f".{folder.name}{_DRAFT}")
            shutil.rmtree(draft, ignore_errors=True)
            if not folder.exists():
                draft.mkdir()
                try:
                    fill(draft)
                    draft.rename(folder)
                finally:
                    shutil.rmtree(draft, ignore_errors=True)
    return folder


def _remove_drafts(parent: Path) -> None:
    """Remove drafts that no process writes any more."""
    for draft in parent.glob(f".*{_DRAFT}"):
        file_lock = _file_lock(draft.with_name(draft.name.removesuffix(_DRAFT).removeprefix(".")))
        try:
            with file_lock.acquire(timeout=0):
                shutil.rmtree(draft, ignore_errors=True)
        except Timeout:
            pass


def _file_lock(path: Path) -> FileLock:
    return FileLock(path.with_name(f".{path.name}.lock"))
