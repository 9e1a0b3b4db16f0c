"""Files that are written whole or not at all, whenever the process ends."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def naming(path: Path, partial: Path | None = None) -> Iterator[None]:
    """Name a file or folder in an error of the system that names none, as that of a full disk.

    Args:
        path: The file or folder, as its user knows it.
        partial: What it is called until it is whole; an error that names this is told of `path`.

    Raises:
        OSError: the same, with the path.
    """
    try:
        yield
    except OSError as error:
        named = str(path)
        if error.filename is not None:
            if partial is None or str(partial) not in str(error.filename):
                raise
            named = str(error.filename).replace(str(partial), named)
        # numpy's error of an array that was written in part has neither number nor reason
        reason = error.strerror or f"not written whole ({error}); is the disk full?"
        raise OSError(error.errno or errno.EIO, reason, named) from error


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """Yield the path of a partial file, which takes the name of `path` when it is on the disk.

    Args:
        path: The file.
        shared: Whether several processes may write it at once. One that is killed then leaves a
            partial file which the next does not overwrite.

    Raises:
        FileNotFoundError: if there is no such directory.
        OSError: if the file cannot be written, such as on a full disk; it names the file.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory to write to", str(path.parent))
    own = f".{os.urandom(4).hex()}" if shared else ""
    partial = path.with_name(f".{path.name}{own}.partial")
    try:
        with naming(path, partial):
            yield partial
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a draft of a folder, which takes the name of `folder` when all is written.

    Args:
        folder: The folder; it is not there, or empty.

    Raises:
        OSError: if it cannot be written, such as on a full disk; it names the folder.
    """
    draft = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
    try:
        with naming(folder, draft):
            draft.mkdir(parents=True)
            yield draft
            if folder.exists():
                folder.rmdir()
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_text(path: Path, content: str, *, shared: bool = False) -> None:
    """Write a text as it is, in UTF-8; `shared` as in `replacing`."""
    with replacing(path, shared=shared) as partial:
        partial.write_text(content, encoding="utf-8", newline="")


def write_tensors(path: Path, content: Any) -> None:
    """Write what `torch.load` reads.

    Raises:
        OSError: if it cannot be written, such as on a full disk.
    """
    import torch

    try:
        with replacing(path) as partial, partial.open("wb") as file:
            torch.save(content, file)
    except RuntimeError as error:  # torch's writer hides the one in the other
        if not isinstance(hidden := error.__context__, OSError):
            raise
        raise OSError(hidden.errno, hidden.strerror, str(path)) from error
