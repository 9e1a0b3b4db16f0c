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
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO

Converter = Callable[[Path, Path], None]


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


def read_zip_member(archive: Path, member: str) -> bytes:
    """Read a file in a zip archive."""
    with zipfile.ZipFile(archive) as file:
        return file.read(member)


def open_tar_member(archive: tarfile.TarFile, ending: str) -> IO[bytes]:
    """Open the first file in an archive whose path ends so, whatever its top folder is."""
    for member in archive:
        if member.isfile() and member.name.endswith(ending):
            file = archive.extractfile(member)
            assert file is not None
            return file
    raise KeyError(f"no file {ending} in {archive.name!s}")


def copy_files(downloads: Path, folder: Path) -> None:
    """Copy files that stay as they are."""
    shutil.copytree(downloads, folder, dirs_exist_ok=True)


def unzip_converter(archive: str, members: Mapping[str, str]) -> Converter:
    """Make a converter for files of a zip archive.

    Args:
        archive: Name of the archive.
        members: New name of each file; packed if it ends in `.gz`.
    """

    def convert(downloads: Path, folder: Path) -> None:
        with zipfile.ZipFile(downloads / archive) as source:
            for member, name in members.items():
                with source.open(member) as file, open_output(folder / name) as target:
                    shutil.copyfileobj(file, target)

    return convert
