"""Digests of the data files that options name, by which an edited file is noticed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from clusterformer.data.cache import checksum


def file_digests(options: Any) -> dict[str, str]:
    """Compute the digest of each file that is a value among options, however deep.

    A folder has none.

    Returns:
        Path, as the options write it, to the digest of the file's content.
    """
    found: dict[str, str] = {}
    for name in _words(options):
        path = Path(name).expanduser()
        with suppress(OSError, ValueError):  # no such file, or too long to be a name
            if path.is_file():
                found[name] = _checksum(path.resolve(), path.stat().st_mtime_ns)
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


@cache
def _checksum(path: Path, _changed: int) -> str:
    return checksum(path)
