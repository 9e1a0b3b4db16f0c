"""Documents for language modelling: named sets with their published counts, or own files."""

from __future__ import annotations

import io
import logging
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from lightning.pytorch.utilities.rank_zero import rank_zero_only

from clusterformer.data.named_sets import Split, check_count, data_folder
from clusterformer.data.tables import is_table, read_text
from clusterformer.data.text_pieces import open_bytes, text_pieces
from clusterformer.errors import InputError, MissingDataError, reading
from clusterformer.wording import counted

_log = logging.getLogger(__name__)

_EMPTY_SIZE = 1024  # bytes; a gzip of nothing holds its file's name

LanguageModelingCorpus = Literal[
    "wikitext2", "gutenberg", "stdlib", "pg19", "wikipedia", "wikipedia-simple"
]

_ENDINGS = (".txt", ".txt.gz")
_WIKITEXT2 = {  # lines, words; line ends are further words, 2,088,628 / 217,646 / 245,569 in all
    "train": (36_718, 2_051_910),
    "valid": (3_760, 213_886),
    "test": (4_358, 241_211),
}
_NUM_GUTENBERG = 51
# Whole books; no other book of their authors is in the training part.
_HELD_OUT = {
    "valid": ("baum-wizard-of-oz", "dubois-souls", "shelley-frankenstein"),
    "test": (
        "ball-great-astronomers",
        "barrie-peter-pan",
        "bronte-e-wuthering-heights",
        "carroll-alice",
    ),
}
_NUM_WIKIPEDIA = {"wikipedia": 41, "wikipedia-simple": 1}
_PG19 = {"train": ("train", 28_602), "valid": ("validation", 50), "test": ("test", 100)}


class Document(NamedTuple):
    """A file, or its share from `first` to `last` (fractions, 0..1), cut at line ends.

    Attributes:
        path: Path of the file.
        first: Start of the share.
        last: End of the share.
        lines: Published number of lines of the whole file; None for any.
        words: Published number of words, likewise.
        size: Published number of bytes of UTF-8, likewise.
    """

    path: Path
    first: float = 0.0
    last: float = 1.0
    lines: int | None = None
    words: int | None = None
    size: int | None = None

    @property
    def part(self) -> str:
        """Description of the share, for messages."""
        if (self.first, self.last) == (0.0, 1.0):
            return "it"
        return (
            f"its lines from {self.first:.0%} to {self.last:.0%}: a line goes whole into one part; "
            "break it into shorter ones, or hold out other files, as data.valid and data.test"
        )

    def read(self) -> str:
        """Read the text, in UTF-8.

        Raises:
            InputError: if the file cannot be read, or its counts are not the published ones.
        """
        return "".join(self.pieces())

    def pieces(self, encoding: str = "utf-8") -> Iterator[str]:
        """Yield the text in pieces of about a megabyte; all but the last end at a line end.

        Raises:
            InputError: as `read` does; for counts, after the last piece.
        """
        if (self.first, self.last) != (0.0, 1.0):
            total = sum(map(len, text_pieces(self.path, encoding)))
            yield from _share(
                text_pieces(self.path, encoding), round(self.first * total),
                round(self.last * total), total,
            )  # fmt: skip
            return
        lines = words = size = 0
        for piece in text_pieces(self.path, encoding):
            yield piece
            if self.lines is not None:
                lines += piece.count("\n")
            if self.words is not None:
                words += len(piece.split())
            if self.size is not None:
                size += len(piece.encode())
        for what, expected, found in (
            ("lines", self.lines, lines),
            ("words", self.words, words),
            ("bytes", self.size, size),
        ):
            if expected is not None:
                check_count(self.path, what, found, expected)


def named_documents(
    name: LanguageModelingCorpus, split: Split, root: str | Path | None = None
) -> list[Document]:
    """List the documents of one split of a named set.

    wikitext2 is one file a split, pg19 a folder a split. gutenberg, 51 books, has no published
    split: here three whole books validate and four test, and no other book of their authors is in
    the training split. stdlib, the source code of Python's standard library, wikipedia and
    wikipedia-simple are as `clusterformer prepare` deals them.

    Args:
        name: Name of the set.
        split: "train", "valid" or "test".
        root: Folder of the data sets; None for the default one.

    Raises:
        InputError: if the set is missing or incomplete.
    """
    folder = data_folder(root) / name
    if not folder.is_dir():
        raise MissingDataError(
            f"{name}: no folder {folder}; `clusterformer prepare {name}` brings it, or set "
            f"data.root, or $CLUSTERFORMER_DATA, to the folder that holds {name}"
        )
    if name == "wikitext2":
        lines, words = _WIKITEXT2[split]
        return [Document(folder / f"{split}.txt.gz", lines=lines, words=words)]
    if name == "gutenberg":
        return _gutenberg(folder, split)
    if name == "stdlib":
        return own_documents(folder / split)
    if name in _NUM_WIKIPEDIA:
        if split != "train":
            return [Document(folder / f"{split}.txt.gz")]
        return _files(folder / "train", _NUM_WIKIPEDIA[name], "files")
    part, count = _PG19[split]
    return _files(folder / part, count, "books")


def own_documents(path: str | Path, first: float = 0.0, last: float = 1.0) -> list[Document]:
    """List a file, or all `.txt` and `.txt.gz` files of a folder in the order of their names.

    Empty files of a folder are left out, and counted in a warning.

    Args:
        path: File or folder.
        first: Start of the share wanted, 0..1: of a file's lines, or of a folder's files.
        last: End of the share.

    Raises:
        InputError: if there is no such document.
    """
    path = Path(path).expanduser()
    if not path.is_dir():
        if not path.exists():
            raise InputError(f"{path}: no such file")
        if not path.is_file():
            raise InputError(f"{path}: no regular file; the text is read more than once")
        warn_of_table(path)
        return [Document(path, first, last)]
    files = sorted(file for file in path.iterdir() if file.name.endswith(_ENDINGS))
    if not files:
        raise InputError(f"{path}: no files ending in {' or '.join(_ENDINGS)} in this folder")
    whole = [file for file in files if not _is_empty(file)]
    if not whole:
        raise InputError(f"{path}: no text in its {counted(len(files), 'file')}")
    if len(whole) < len(files):
        _warn_of_empty(path, len(files) - len(whole))
    chosen = whole[round(first * len(whole)) : round(last * len(whole))]
    if not chosen:
        raise InputError(
            f"{path}: too few files, {len(whole)}, to hold some out; give data.valid and data.test"
        )
    return [Document(file) for file in chosen]


def _is_empty(file: Path) -> bool:
    with reading(file, "text"):
        if file.stat().st_size > _EMPTY_SIZE:  # so that few of many files are opened
            return False
        with open_bytes(file) as content:
            return content.read(len(BOM_UTF8) + 1) in (b"", BOM_UTF8)


@cache  # the parts of a data set are listed one by one: say it once
def warn_of_table(path: Path) -> None:
    """Warn of a file of lines of text whose ending names a table."""
    if is_table(path):
        rank_zero_only(_log.warning)(
            f"{path}: read as plain text, with all that makes it a table, such as quotes and names "
            "of columns; if only its texts are wanted, write them to a .txt file"
        )


@cache
def _warn_of_empty(folder: Path, count: int) -> None:
    rank_zero_only(_log.warning)(f"{folder}: {counted(count, 'empty file')} left out")


def _files(folder: Path, count: int, what: str) -> list[Document]:
    documents = own_documents(folder)
    if len(documents) != count:
        raise InputError(
            f"{folder}: {len(documents):,} {what}, expected {count:,}; the data set is changed, or "
            "give your own folders as data.train, data.valid and data.test"
        )
    return documents


def _gutenberg(folder: Path, split: Split) -> list[Document]:
    index = folder / "index.tsv"
    with reading(index, "a table of books, as `clusterformer prepare gutenberg` writes it"):
        header, *rows = (line.split("\t") for line in read_text(index).splitlines())
        if len(rows) != _NUM_GUTENBERG:
            raise InputError(f"{index}: {len(rows)} books, expected {_NUM_GUTENBERG}")
        books = {
            row[header.index("file")].partition(".")[0]: Document(
                folder / row[header.index("file")], size=int(row[header.index("bytes")])
            )
            for row in rows
        }
    held = {name: part for part, names in _HELD_OUT.items() for name in names}
    return [books[name] for name in sorted(books) if held.get(name, "train") == split]


def _share(pieces: Iterable[str], first: int, last: int, total: int) -> Iterator[str]:
    """Yield the lines from the one that holds character `first` to the one before `last`'s."""
    at = 0
    for piece in pieces:
        if first < at and (last == total or at + len(piece) <= last):
            yield piece
            at += len(piece)
            continue
        for line in io.StringIO(piece, newline="\n"):  # splitlines() would split at form feeds too
            end = at + len(line)
            if end > first and (last == total or end <= last):
                yield line
            at = end


def document_pieces(documents: Iterable[Document], encoding: str = "utf-8") -> Iterator[str]:
    """Yield the texts in pieces, as `Document.pieces` does."""
    for document in documents:
        yield from document.pieces(encoding)


class DocumentSplits:
    """Documents of each split: those of a named set, or the user's own.

    Args:
        name: Name of the set; None for own documents.
        root: Folder of the data sets; None for the default one.
        files: Own file or folder of each split.

    Raises:
        InputError: if not exactly one of both is given, or only some splits have own documents.
    """

    def __init__(
        self, name: LanguageModelingCorpus | None, root: str | None, files: dict[Split, str | None]
    ) -> None:
        own = [file for file in files.values() if file is not None]
        if len(own) != (len(files) if name is None else 0):
            given = ", ".join(f"{option} {value!r}" for option, value in files.items())
            raise InputError(
                "give either a named set (name), or own texts as train, valid and test; got "
                f"name {name!r}, {given}"
            )
        self._name, self._root, self._files = name, root, files

    def where(self, split: Split) -> str:
        """Description of a split, for messages."""
        return f"{split} part of {self._name}" if self._name else str(self._files[split])

    def read(self, split: Split) -> Iterator[str]:
        """Yield the texts of a split, one in memory at a time."""
        if self._name is not None:
            documents = named_documents(self._name, split, self._root)
        else:
            documents = own_documents(str(self._files[split]))
        return (document.read() for document in documents)
