"""Converters of labelled texts and pairs to the tables that the tasks read; see archives.py."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from clusterformer.data.prepare.archives import (
    Converter,
    open_tar,
    read_zip_member,
    split_lines,
    tar_files,
    write_lines,
)


def two_class_converter(name: str, negative: str, positive: str, encoding: str) -> Converter:
    """Make a converter for two files of sentences: label 0 or 1, tab, sentence; no empty lines.

    Args:
        name: Name of the set and of its table.
        negative: File of the sentences with label 0.
        positive: File of the sentences with label 1.
        encoding: Encoding of both.
    """

    def rows(downloads: Path) -> Iterator[str]:
        for label, file in enumerate((negative, positive)):
            for line in split_lines((downloads / file).read_bytes(), encoding):
                if line:
                    yield f"{label}\t{line}"

    def convert(downloads: Path, folder: Path) -> None:
        write_lines(folder / f"{name}.tsv", rows(downloads))

    return convert


def convert_newsgroups(downloads: Path, folder: Path) -> None:
    """Convert 20 Newsgroups, one file a post, to JSON lines ordered by group and number."""
    posts: dict[str, dict[tuple[str, int], str]] = {"train": {}, "test": {}}
    with open_tar(downloads / "20news-bydate.tar.gz") as archive:
        for name, file in tar_files(archive):
            part, group, number = name.split("/")[-3:]
            posts[part.rpartition("-")[2]][group, int(number)] = file.read().decode("latin-1")
    for part, texts in posts.items():
        records = (
            {"id": str(number), "label": group, "text": text}
            for (group, number), text in sorted(texts.items())
        )
        lines = (json.dumps(record, ensure_ascii=False) for record in records)
        write_lines(folder / f"20news-bydate-{part}.jsonl.gz", lines)


def inference_converter(
    archive: str, parts: Mapping[str, str], labels: Mapping[str, str]
) -> Converter:
    """Make a converter for SNLI or MultiNLI: premise, hypothesis, label; pairs with a gold label.

    Args:
        archive: Name of the zip archive of JSON lines.
        parts: New name of each of its files.
        labels: New name of each label.
    """

    def rows(data: bytes) -> Iterator[str]:
        for line in split_lines(data):
            pair = json.loads(line)
            if pair["gold_label"] != "-":
                label = labels[pair["gold_label"]]
                yield _row(pair["sentence1"], pair["sentence2"], label)

    def convert(downloads: Path, folder: Path) -> None:
        for member, name in parts.items():
            write_lines(folder / f"{name}.tsv", rows(read_zip_member(downloads / archive, member)))

    return convert


def column_converter(
    archive: str, parts: Mapping[str, str], columns: Sequence[int], *, header: bool = False
) -> Converter:
    """Make a converter for some columns of tables, TSV in a zip archive.

    Args:
        archive: Name of the archive.
        parts: New name of each of its files.
        columns: Columns wanted, from 0, in the order wanted.
        header: Whether the first line is a header, to be dropped.
    """

    def convert(downloads: Path, folder: Path) -> None:
        for member, name in parts.items():
            lines = split_lines(read_zip_member(downloads / archive, member))[header:]
            cells = (line.split("\t") for line in lines)
            rows = (_row(*(row[column] for column in columns)) for row in cells)
            write_lines(folder / f"{name}.tsv", rows)

    return convert


def convert_sick(downloads: Path, folder: Path) -> None:
    """Convert SICK: the tables as they are, with one kind of line ends."""
    for name, part in (("train", "train"), ("trial", "trial"), ("test_annotated", "test")):
        lines = split_lines((downloads / f"SICK_{name}.txt").read_bytes())
        write_lines(folder / f"{part}.tsv", lines)


def convert_stsb(downloads: Path, folder: Path) -> None:
    """Convert STS-B, CSV of two sentences and a score, to tables with tabs."""
    for part in ("train", "dev", "test"):
        text = (downloads / f"stsb-en-{part}.csv").read_text(encoding="utf-8")
        rows = csv.reader(text.splitlines(keepends=True))
        write_lines(folder / f"{part}.tsv", (_row(*row) for row in rows))


def convert_mrpc(downloads: Path, folder: Path) -> None:
    """Convert MRPC: the tables as they are; a list of pairs says which of train are GLUE's dev."""
    ids = split_lines((downloads / "mrpc_dev_ids.tsv").read_bytes())
    held = {tuple(line.split("\t")) for line in ids}
    parts: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
    for file in ("train", "test"):
        table = (downloads / f"msr_paraphrase_{file}.txt").read_bytes()
        header, *lines = split_lines(table, "utf-8-sig")
        for line in lines:
            cells = line.split("\t")
            part = "dev" if file == "train" and tuple(cells[1:3]) in held else file
            parts[part].append(_row(*cells))
    for part, rows in parts.items():
        write_lines(folder / f"{part}.tsv", [header, *rows])


def _row(*cells: str) -> str:
    return "\t".join(" ".join(cell.split()) for cell in cells)
