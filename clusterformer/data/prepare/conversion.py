"""From what publishers offer to the files that the tasks read: labelled text, pairs, plain files.

A converter is called with the folder of the downloads and the new folder of the set. Texts keep
their words, case and order; spaces, tabs and line ends within an example become one space.
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

Converter = Callable[[Path, Path], None]


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write UTF-8 text, packed if the name ends in `.gz`; the same lines give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with opened(path) as file:
        for line in lines:
            file.write(f"{line}\n".encode())


def opened(path: Path) -> io.BufferedIOBase:
    """Open a file to write bytes, through gzip if the name ends in `.gz`."""
    if path.suffix != ".gz":
        return path.open("wb")
    return gzip.GzipFile(path, "wb", 6, mtime=0)


def lines_of(data: bytes, encoding: str = "utf-8") -> list[str]:
    """Lines of a file's content, split at line feeds alone; carriage returns go."""
    return data.decode(encoding).replace("\r", "").removesuffix("\n").split("\n")


def zipped(archive: Path, member: str) -> bytes:
    """Content of a file in a zip archive."""
    with zipfile.ZipFile(archive) as file:
        return file.read(member)


def copied(downloads: Path, folder: Path) -> None:
    """Files that stay as they are."""
    shutil.copytree(downloads, folder, dirs_exist_ok=True)


def unzipped(archive: str, members: Mapping[str, str]) -> Converter:
    """Converter for files of a zip archive that get another name; packed if it ends in `.gz`."""

    def convert(downloads: Path, folder: Path) -> None:
        with zipfile.ZipFile(downloads / archive) as source:
            for member, name in members.items():
                with source.open(member) as file, opened(folder / name) as target:
                    shutil.copyfileobj(file, target)

    return convert


def two_classes(name: str, negative: str, positive: str, encoding: str) -> Converter:
    """Converter for a file of sentences a class: label 0 or 1, tab, sentence; no empty lines."""

    def rows(downloads: Path) -> Iterator[str]:
        for label, file in enumerate((negative, positive)):
            for line in lines_of((downloads / file).read_bytes(), encoding):
                if line:
                    yield f"{label}\t{line}"

    def convert(downloads: Path, folder: Path) -> None:
        write_lines(folder / f"{name}.tsv", rows(downloads))

    return convert


def newsgroups(downloads: Path, folder: Path) -> None:
    """20 Newsgroups: a file a post in a folder a group -> JSON lines, by group and number."""
    posts: dict[str, dict[tuple[str, int], str]] = {"train": {}, "test": {}}
    with tarfile.open(downloads / "20news-bydate.tar.gz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                part, group, number = member.name.split("/")[-3:]
                posts[part.rpartition("-")[2]][group, int(number)] = file.read().decode("latin-1")
    for part, texts in posts.items():
        records = (
            {"id": str(number), "label": group, "text": text}
            for (group, number), text in sorted(texts.items())
        )
        lines = (json.dumps(record, ensure_ascii=False) for record in records)
        write_lines(folder / f"20news-bydate-{part}.jsonl.gz", lines)


def inference(archive: str, parts: Mapping[str, str], labels: Mapping[str, str]) -> Converter:
    """Converter for SNLI and MultiNLI: premise, hypothesis, label; without those of no gold label.

    Args:
        archive: A zip of JSON lines.
        parts: Member -> name of the part.
        labels: Label -> how it is to be written.
    """

    def rows(data: bytes) -> Iterator[str]:
        for line in lines_of(data):
            pair = json.loads(line)
            if pair["gold_label"] != "-":
                label = labels[pair["gold_label"]]
                yield _row(pair["sentence1"], pair["sentence2"], label)

    def convert(downloads: Path, folder: Path) -> None:
        for member, name in parts.items():
            write_lines(folder / f"{name}.tsv", rows(zipped(downloads / archive, member)))

    return convert


def columns(
    archive: str, parts: Mapping[str, str], order: Sequence[int], *, header: bool = False
) -> Converter:
    """Converter for tables, TSV in a zip archive, of which some columns are wanted.

    Args:
        archive: The zip.
        parts: Member -> name of the part.
        order: Of the columns wanted, from 0.
        header: Whether the first line is none of the table.
    """

    def convert(downloads: Path, folder: Path) -> None:
        for member, name in parts.items():
            lines = lines_of(zipped(downloads / archive, member))[header:]
            cells = (line.split("\t") for line in lines)
            rows = (_row(*(row[column] for column in order)) for row in cells)
            write_lines(folder / f"{name}.tsv", rows)

    return convert


def sick(downloads: Path, folder: Path) -> None:
    """SICK: its tables as they are, with one kind of line ends."""
    for name, part in (("train", "train"), ("trial", "trial"), ("test_annotated", "test")):
        lines = lines_of((downloads / f"SICK_{name}.txt").read_bytes())
        write_lines(folder / f"{part}.tsv", lines)


def _row(*cells: str) -> str:
    return "\t".join(" ".join(cell.split()) for cell in cells)
