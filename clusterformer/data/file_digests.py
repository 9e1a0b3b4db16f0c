"""Digests of the data files that options name, by which an edited file is noticed."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from clusterformer.data.cache import cache_folder, checksum
from clusterformer.whole_files import write_text

KEPT_FROM = 2**26
"""Bytes from which on the user's cache keeps the digest of a file: a tenth of a second to read."""

SETTLED = 10**10
"""Nanoseconds since a file's last change for it to be kept: clocks of disks are coarse."""


def file_digests(options: Any) -> dict[str, str]:
    """Compute the digest of each file that is a value among options, however deep.

    A folder has none. A large file of the size and times of an earlier call is not read again.

    Returns:
        Path, as the options write it, to the digest of the file's content.
    """
    found: dict[str, str] = {}
    for name in _words(options):
        path = Path(name).expanduser()
        with suppress(OSError, ValueError):  # no such file, or too long to be a name
            if path.is_file():
                found[name] = _checksum(path.resolve(), _stamp(path))
    return found


def edited(before: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """Name the first file whose digest is not that of before; None if there is none."""
    return next((name for name, digest in now.items() if before.get(name, digest) != digest), None)


def _words(options: Any) -> Iterator[str]:
    if isinstance(options, str):
        yield options
    elif isinstance(options, Mapping):
        for value in options.values():
            yield from _words(value)
    elif isinstance(options, list | tuple):
        for value in options:
            yield from _words(value)


def _stamp(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


@cache
def _checksum(path: Path, stamp: tuple[int, int, int]) -> str:
    size, changed, _ = stamp
    if size < KEPT_FROM:
        return checksum(path)
    identity = f"{path} {stamp}".encode(errors="surrogateescape")
    kept = cache_folder() / "digests" / hashlib.sha256(identity).hexdigest()[:32]
    with suppress(OSError, UnicodeDecodeError):
        if re.fullmatch(r"[0-9a-f]{32}", found := kept.read_text(encoding="utf-8")):
            return found
    digest = checksum(path)
    if _stamp(path) == stamp and time.time_ns() - changed > SETTLED:
        with suppress(OSError):  # it is read again the next time
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_text(kept, digest, shared=True)
    return digest
