"""Basics of the named data sets: their folder, their splits, and the check of their counts."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path
from typing import Literal

from clusterformer.data.cache import cache_folder
from clusterformer.errors import InputError, MissingDataError

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


def data_folder(root: str | Path | None = None) -> Path:
    """Folder of the named data sets: `root`, else $CLUSTERFORMER_DATA, else the user's cache."""
    chosen = root or os.environ.get("CLUSTERFORMER_DATA")
    return Path(chosen).expanduser() if chosen else cache_folder()


def check_count(where: Path, what: str, found: int, *expected: int) -> None:
    """Refuse a data set whose counts are not the published ones.

    Raises:
        InputError: if `found` is none of the expected counts.
    """
    if found not in expected:
        allowed = " or ".join(f"{count:,}" for count in expected)
        raise InputError(f"{where}: {found:,} {what}, expected {allowed}; the data set is changed")


def missing_file(name: str, path: Path | str, known: Container[str] = ()) -> MissingDataError:
    """Make the error for a named set without one of its files.

    Args:
        name: Name of the set.
        path: Path of the file.
        known: Names of all sets; with "NAME-part" among them, the message suggests it.
    """
    hint = "" if name.endswith("-part") else f"; `clusterformer prepare {name}` brings it"
    if f"{name}-part" in known:
        hint += f", or train on what is there: name {name}-part"
    folder = "data.root, or $CLUSTERFORMER_DATA, is the folder of the data sets"
    return MissingDataError(f"{name}: no file {path}{hint}; {folder}")
