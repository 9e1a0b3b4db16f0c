"""Preparation of a named set: fetch, convert, count, then move to the folder of the data sets."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from clusterformer.data.cache import lock
from clusterformer.data.named_sets import data_folder
from clusterformer.data.prepare.catalogue import PublishedSet, published_set
from clusterformer.data.prepare.download import Progress, digest, fetch
from clusterformer.data.text_pieces import open_bytes
from clusterformer.errors import InputError, missing
from clusterformer.whole_files import whole_folder

Presence = Literal["yes", "part", "no"]


def prepare_set(
    name: str,
    *,
    root: str | Path | None = None,
    mirror: str | None = None,
    accept: bool = False,
    keep: bool = False,
    timeout: float = 30.0,
    report: Callable[[str], None] = print,
    progress_of: Callable[[str], Progress] = lambda file: lambda done, total: None,
) -> Path:
    """Bring a named set to the folder where the tasks look for it, unless it is there.

    Downloads are in `downloads/NAME` under the root until the set is complete; files fetched by
    hand belong there as well. A run that ends early leaves that folder to the next one. Of several
    processes that prepare the same set one works and the others wait.

    Args:
        name: Name of the set.
        root: Folder of the data sets; None for the default one.
        mirror: Address that holds the files as `NAME/FILE`, instead of their publishers'.
        accept: Whether the user accepts the licence, where a set asks for that.
        keep: Whether to keep the downloads when the set is complete.
        timeout: Seconds without a byte after which a connection counts as dead.
        report: Function that gets a message, one line, for each step.
        progress_of: Function that makes the progress callback of a file.

    Returns:
        The folder of the set.

    Raises:
        InputError: if there is no such set, it cannot be fetched, its licence must be accepted,
            its folder holds other files, or its counts are not the published ones.
        OSError: if its folder cannot be written, such as on a full disk; it names the folder.
    """
    published = published_set(name)
    root_folder = data_folder(root)
    folder = published.folder_in(root_folder)
    downloads = root_folder / "downloads" / name
    if presence(published, root_folder) == "yes":
        return folder
    if published.needs and find_spec(published.needs) is None:
        raise missing(f"{name} is read by the library {published.needs}", "hub")
    downloads.parent.mkdir(parents=True, exist_ok=True)
    with lock(downloads, report):
        if presence(published, root_folder) == "yes":
            return folder
        found = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
        if found:
            raise InputError(
                f"{folder} holds {', '.join(found[:3])}{', ...' * (len(found) > 3)}, but not all "
                f"of {name}; move it away or choose another --root"
            )
        downloads.mkdir(exist_ok=True)
        if mirror and not published.remotes:
            report(f"{name}: the mirror is not used; this set has no file that a mirror holds")
        for remote in published.remotes:
            path = downloads / remote.file
            if not path.exists():
                _check_terms(published, path, accept, mirror)
                url = f"{mirror.rstrip('/')}/{name}/{remote.file}" if mirror else remote.url
                progress = progress_of(remote.file)
                fetch(
                    url,
                    path,
                    checksum=remote.checksum,
                    size=remote.size,
                    timeout=timeout,
                    report=report,
                    progress=progress,
                )
            elif (found_sum := digest(path, remote.checksum)) != remote.checksum:
                raise InputError(f"{path}: {found_sum}, expected {remote.checksum}; remove it")
        report(f"{name}: making its files")
        _build(published, downloads, folder)
        if not keep:
            shutil.rmtree(downloads)
    return folder


def presence(published: PublishedSet, root: Path) -> Presence:
    """Check whether all, some or none of a set's files are in the folder of the data sets."""
    folder = published.folder_in(root)
    present = [_packed_or_not(folder / file) is not None for file in published.contents]
    return "yes" if all(present) else "part" if any(present) else "no"


def _packed_or_not(path: Path) -> Path | None:
    """Find a file, or the same with or without gzip, which the tasks read as well."""
    other = path.with_suffix("") if path.suffix == ".gz" else path.with_name(f"{path.name}.gz")
    return next((found for found in (path, other) if found.exists()), None)


def _check_terms(published: PublishedSet, path: Path, accept: bool, mirror: str | None) -> None:
    by_hand = f"fetch {path.name} yourself, put it at {path} and run this again"
    under = f"its licence: {published.licence}, see {published.page}"
    if published.terms == "by hand" and not mirror:
        raise InputError(f"{published.name} cannot be fetched by a program; {under}; {by_hand}")
    if published.terms != "open" and not accept:
        raise InputError(
            f"{published.name} is for those who accept {under}; then add --accept-licence, or "
            f"{by_hand}"
        )


def _build(published: PublishedSet, downloads: Path, folder: Path) -> None:
    """Make the set's files and check their counts; `folder` appears with all of them."""
    with whole_folder(folder) as draft:
        try:
            published.converter(downloads, draft)
        except Exception as error:  # whatever is in a download, it is one line
            of_system = isinstance(error, OSError) and error.errno  # as that of a full disk
            if isinstance(error, InputError) or of_system:
                raise
            said = f"{error}" or type(error).__name__
            raise InputError(
                f"{downloads}: not as expected: {said}; remove it to fetch {published.name} again"
            ) from error
        for file, expected in published.contents.items():
            found = _count(draft / file) if expected else expected
            if found != expected:
                raise InputError(
                    f"{published.name}: {file} has {found:,} {_unit(draft / file)}, "
                    f"expected {expected:,}; the downloads are in {downloads}"
                )


def _unit(path: Path) -> str:
    return "files" if path.is_dir() else "lines"


def _count(path: Path) -> int:
    """Count the lines of a file, or the files of a folder."""
    if path.is_dir():
        return sum(1 for _ in path.iterdir())
    with open_bytes(path) as file:
        return sum(1 for _ in file)
