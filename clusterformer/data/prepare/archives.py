"""Reading what publishers offer and writing the files of a set: archives, lines, gzip.

A converter is a function of two folders, that of the downloads and the new one of the set. Texts
keep their words, case and order; spaces, tabs and line ends within an example become one space.
"""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from clusterformer.errors import InputError

Converter = Callable[[Path, Path], None]

MAX_RATIO = 30
"""Maximum ratio of unpacked to packed bytes; text has 3 to 10."""

MIN_UNPACKED = 2**26
"""Number of bytes that any archive may unpack to."""


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write UTF-8 text, packed if the name ends in `.gz`; the same lines give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_output(path) as file:
        for line in lines:
            file.write(f"{line}\n".encode())


def open_output(path: Path) -> io.BufferedIOBase:
    """Open a file to write bytes, through gzip if the name ends in `.gz`."""
    if path.suffix != ".gz":
        return path.open("wb")
    return gzip.GzipFile(path, "wb", 6, mtime=0)


def split_lines(data: bytes, encoding: str = "utf-8") -> list[str]:
    """Split a file's content at line feeds only; carriage returns are dropped."""
    return data.decode(encoding).replace("\r", "").removesuffix("\n").split("\n")


class BoundedReader(io.RawIOBase):
    """Unpacked content, read as a stream up to a limit: a small file cannot fill disk or memory.

    Args:
        file: Unpacking file.
        archive: Packed file; its size gives the limit.
    """

    def __init__(self, file: IO[bytes] | gzip.GzipFile, archive: Path) -> None:
        self._file, self._archive = file, archive
        self._max_bytes = max(MIN_UNPACKED, MAX_RATIO * archive.stat().st_size)

    def read(self, size: int | None = -1) -> bytes:
        """Read up to `size` bytes; None or below 0 for all of them."""
        rest = self._max_bytes + 1 - self._file.tell()
        data = self._file.read(rest if size is None or size < 0 else min(size, rest))
        self._check(self._file.tell())
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check(offset + (self._file.tell() if whence == io.SEEK_CUR else 0))
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise InputError(
                f"{self._archive}: more than {self._max_bytes:,} bytes unpacked, {MAX_RATIO} times "
                "its size; it is no archive of texts"
            )


@contextmanager
def open_zip_member(archive: Path, member: str) -> Iterator[BoundedReader]:
    """Open a file in a zip archive."""
    with zipfile.ZipFile(archive) as source, source.open(member) as file:
        yield BoundedReader(file, archive)


def read_zip_member(archive: Path, member: str) -> bytes:
    """Read a file in a zip archive."""
    with open_zip_member(archive, member) as file:
        return file.read()


def read_gzip(path: Path) -> bytes:
    """Read a file packed by gzip."""
    with gzip.open(path) as file:
        return BoundedReader(file, path).read()


@contextmanager
def open_tar(path: Path) -> Iterator[tarfile.TarFile]:
    """Open a tar archive, also packed by gzip; nothing is ever extracted to a path of its own."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    with gzip.open(path) if packed else path.open("rb") as unpacked:
        reader = BoundedReader(unpacked, path)
        with tarfile.open(path.name, "r:", fileobj=reader) as archive:
            yield archive


def tar_files(archive: tarfile.TarFile) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the path and the content of each file in a tar archive; links are left out."""
    for member in archive:
        if member.isreg() and not member.issparse():  # a few bytes may stand for any number of 0s
            file = archive.extractfile(member)
            assert file is not None
            yield member.name, file


def open_tar_member(archive: tarfile.TarFile, ending: str) -> IO[bytes]:
    """Open the first file in an archive whose path ends so, whatever its top folder is."""
    for name, file in tar_files(archive):
        if name.endswith(ending):
            return file
    raise KeyError(f"no file {ending} in {archive.name!s}")


def copy_converter(*files: str) -> Converter:
    """Make a converter for files that stay as they are."""

    def convert(downloads: Path, folder: Path) -> None:
        for name in files:
            copy_file(downloads / name, folder / name)

    return convert


def copy_file(path: Path, target: Path) -> None:
    """Copy a file; not by shutil.copy, whose error on a full disk names the file that it reads."""
    with path.open("rb") as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy)


def unzip_converter(archive: str, members: Mapping[str, str]) -> Converter:
    """Make a converter for files of a zip archive.

    Args:
        archive: Name of the archive.
        members: New name of each file; packed if it ends in `.gz`.
    """

    def convert(downloads: Path, folder: Path) -> None:
        for member, name in members.items():
            with (
                open_zip_member(downloads / archive, member) as file,
                open_output(folder / name) as target,
            ):
                shutil.copyfileobj(file, target)

    return convert
