"""The user's cache: folders that are computed once and found by later runs, and their locks.

Nothing in the cache can run code: it holds numbers, text and JSON, never a pickle.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from clusterformer.whole_files import naming

_log = logging.getLogger(__name__)

_DRAFT = ".draft"
_MANIFEST = "manifest.json"


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
        held = file_lock.acquire(timeout=0)
    except Timeout:
        report(f"{path.name}: another process prepares it, waiting")
        held = file_lock.acquire()
    with held:
        yield


def cached_folder(
    folder: Path, fill: Callable[[Path], None], report: Callable[[str], None] = _log.warning
) -> Path:
    """Return a folder of the cache; if it is missing or damaged, let `fill` write an empty one.

    It appears whole or not at all, with a manifest of its files: size and checksum. These are
    checked at every opening; a folder that differs is reported and made again. Of several processes
    one fills it and the others wait. Remains of a killed process are removed by the next one that
    makes a folder beside them.

    Args:
        folder: Path of the folder.
        fill: Function that writes the files into the folder that it gets.
        report: Function that gets one message for a damaged folder.
    """
    if _damage(folder) is None:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_drafts(folder.parent)
    with lock(folder):
        damage = _damage(folder)
        if damage is not None:
            draft = folder.with_name(f".{folder.name}{_DRAFT}")
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            try:
                if folder.exists():
                    report(f"{folder}: damaged, made again: {damage}")
                with naming(folder, draft):
                    fill(draft)
                    (draft / _MANIFEST).write_text(json.dumps(_describe(draft)), encoding="utf-8")
                if folder.exists():
                    shutil.rmtree(folder)
                draft.rename(folder)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    return folder


def _damage(folder: Path) -> str | None:
    """Name the first difference between a folder and its manifest; None if there is none."""
    try:
        expected = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        found = _describe(folder)
    except (OSError, ValueError, RecursionError) as error:
        return f"{_MANIFEST}: {error}"
    if not isinstance(expected, dict):
        return f"{_MANIFEST}: no object"
    for name in sorted({*expected, *found}):
        if found.get(name) != expected.get(name):
            return f"{name} is {_said(found.get(name))}, expected {_said(expected.get(name))}"
    return None


def _describe(folder: Path) -> dict[str, list[int | str]]:
    """Return size and checksum of each file, the manifest excepted.

    Every byte is read, about a second for a gigabyte: a changed byte must not change a result.
    """
    found: dict[str, list[int | str]] = {}
    for path in sorted(folder.iterdir()):
        if path.name != _MANIFEST:
            found[path.name] = [path.stat().st_size, checksum(path)]
    return found


def checksum(path: Path) -> str:
    """Compute the checksum of a file's content, BLAKE2b with 128 bits."""
    return hash_file(path, hashlib.blake2b(digest_size=16))


def hash_file(path: Path, value: Any) -> str:
    """Add a file's content to a hash of hashlib, a megabyte at a time, and return its digest."""
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value.update(block)
    return value.hexdigest()


def _said(entry: object) -> str:
    return "missing" if entry is None else f"{entry}"


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
