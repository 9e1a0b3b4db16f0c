"""Bring a named set to the folder of the data sets: fetch, convert, count, then name it."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from clusterformer.data.cache import lock
from clusterformer.data.named_sets import data_folder
from clusterformer.data.prepare.download import Report, digest, fetch
from clusterformer.data.prepare.publishers import Published, find
from clusterformer.errors import InputError

Presence = Literal["yes", "part", "no"]

_UNEXPECTED = (KeyError, IndexError, ValueError, EOFError, zlib.error)
_UNEXPECTED_ARCHIVE = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile)


def prepare(
    name: str,
    *,
    root: str | Path | None = None,
    mirror: str | None = None,
    accept: bool = False,
    keep: bool = False,
    timeout: float = 30.0,
    say: Callable[[str], None] = print,
    meter: Callable[[str], Report] = lambda file: lambda done, total: None,
) -> Path:
    """Bring a named set to where the tasks look for it; nothing happens if it is there.

    What is fetched lies in `downloads/NAME` under the root, where files fetched by hand belong as
    well, until the set is complete. A run that ends early leaves that folder to the next one. Of
    several processes that prepare the same set one works and the others wait.

    Args:
        name: Of the set.
        root: Folder of the data sets; None for the usual one.
        mirror: Address that holds the files as `NAME/FILE`, instead of their publishers'.
        accept: Whether the user accepts the licence, where a set asks for that.
        keep: Whether to leave the downloads when the set is complete.
        timeout: Seconds without a byte after which a connection counts as dead.
        say: Told what happens, a line each.
        meter: Makes what is told of the progress of a file.

    Returns:
        The folder of the set.

    Raises:
        InputError: if there is no such set, it cannot be fetched, its licence must be accepted,
            other files stand in its place, or it does not hold what it should.
    """
    published = find(name)
    folder = data_folder(root)
    place = published.place(folder)
    downloads = folder / "downloads" / name
    if presence(published, folder) == "yes":
        return place
    downloads.mkdir(parents=True, exist_ok=True)
    with lock(downloads, say):
        downloads.mkdir(exist_ok=True)
        if presence(published, folder) == "yes":
            return place
        if place.exists() and (found := sorted(path.name for path in place.iterdir())):
            raise InputError(
                f"{place} holds {', '.join(found[:3])}{', ...' * (len(found) > 3)}, but not all of "
                f"{name}; move it away or choose another --root"
            )
        for remote in published.remotes:
            path = downloads / remote.file
            if not path.exists():
                _check_terms(published, path, accept, mirror)
                url = f"{mirror.rstrip('/')}/{name}/{remote.file}" if mirror else remote.url
                report = meter(remote.file)
                fetch(url, path, checksum=remote.checksum, timeout=timeout, report=report)
            elif (found_sum := digest(path, remote.checksum)) != remote.checksum:
                raise InputError(f"{path}: {found_sum}, expected {remote.checksum}; remove it")
        say(f"{name}: making its files")
        _build(published, downloads, place)
        if not keep:
            shutil.rmtree(downloads)
    return place


def presence(published: Published, folder: Path) -> Presence:
    """Whether all, some or none of a set's files are in the folder of the data sets."""
    place = published.place(folder)
    there = [_packed_or_not(place / file) is not None for file in published.contents]
    return "yes" if all(there) else "part" if any(there) else "no"


def _packed_or_not(path: Path) -> Path | None:
    """The file, or the same with or without gzip, which the tasks read as well."""
    other = path.with_suffix("") if path.suffix == ".gz" else path.with_name(f"{path.name}.gz")
    return next((found for found in (path, other) if found.exists()), None)


def _check_terms(published: Published, path: Path, accept: bool, mirror: str | None) -> None:
    by_hand = f"fetch {path.name} yourself, put it at {path} and run this again"
    under = f"its licence: {published.licence}, see {published.page}"
    if published.terms == "by hand" and not mirror:
        raise InputError(f"{published.name} cannot be fetched by a program; {under}; {by_hand}")
    if published.terms != "open" and not accept:
        raise InputError(
            f"{published.name} is for those who accept {under}; then add --accept-licence, or "
            f"{by_hand}"
        )


def _build(published: Published, downloads: Path, place: Path) -> None:
    """Make the set's files beside its place, and move them there if they are as many as agreed."""
    new = downloads.with_name(f"{published.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        published.converter(downloads, new)
    except InputError:
        raise
    except (*_UNEXPECTED, *_UNEXPECTED_ARCHIVE) as error:
        raise InputError(
            f"{downloads}: not as expected: {error}; remove it to fetch {published.name} again"
        ) from error
    except OSError as error:
        where = error.filename or published.name
        raise InputError(f"{where}: {error.strerror or error}") from error
    for file, expected in published.contents.items():
        found = _count(new / file) if expected else expected
        if found != expected:
            raise InputError(
                f"{published.name}: {file} has {found:,} {_unit(new / file)}, "
                f"expected {expected:,}; what was fetched is in {downloads}"
            )
    if place.exists():
        place.rmdir()
    new.rename(place)


def _unit(path: Path) -> str:
    return "files" if path.is_dir() else "lines"


def _count(path: Path) -> int:
    """Lines of a file, files of a folder."""
    if path.is_dir():
        return sum(1 for _ in path.iterdir())
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return sum(1 for _ in file)
