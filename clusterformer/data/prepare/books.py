"""Books of Project Gutenberg: the 51 of the set `gutenberg`, and PG-19 from the hub."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import NamedTuple

from clusterformer.data.prepare.conversion import write_lines
from clusterformer.errors import InputError

PG19 = "emozilla/pg19"
"""Repository of PG-19 on the hub, in a format that today's `datasets` reads."""

_START = re.compile(r"\*\*\* ?START OF TH(?:E|IS) PROJECT GUTENBERG .*?\*\*\*", re.DOTALL)
_END = re.compile(r"^\s*(?:\*\*\* ?END OF TH|END OF (?:THE |THIS )?PROJECT GUTENBERG)", re.M | re.I)
_CREDIT = re.compile(
    r"(?:Produced|E-?text prepared|Credits|Transcribed) ?(?:by|:).*?\n\n", re.DOTALL
)
_NUMBER = re.compile(r"\[e(?:book|text) #(\d+)\]", re.I)
_TOLERANCE = 0.1  # editions are corrected and get other front matter


class Book(NamedTuple):
    """A book: number at Project Gutenberg, name of the file, and what the index says of it."""

    number: int
    name: str
    author: str
    title: str
    year: int
    words: int

    @property
    def url(self) -> str:
        """Of the plain text, on the mirror that Project Gutenberg asks programs to use."""
        return f"https://aleph.pglaf.org/cache/epub/{self.number}/pg{self.number}.txt"


def index() -> list[Book]:
    """The books of the set `gutenberg`: gutenberg.tsv, words as counted there in about 2016."""
    lines = Path(__file__).with_name("gutenberg.tsv").read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines[1:])
    return [
        Book(int(number), name, author, title, int(year), int(words))
        for number, name, author, title, year, words in rows
    ]


def gutenberg(downloads: Path, folder: Path) -> None:
    """The books without licence and credits, and an index of them.

    Raises:
        InputError: if a file is another book, or a tenth longer or shorter than it should be.
    """
    table = ["file\tauthor\ttitle\tyear\tbytes\twords\torigin"]
    for book in index():
        path = downloads / f"pg{book.number}.txt"
        text = strip_licence(path.read_text(encoding="utf-8-sig"), path, book.number)
        words = len(text.split())
        if abs(words - book.words) > _TOLERANCE * book.words:
            raise InputError(f"{path}: {words:,} words, expected about {book.words:,}")
        name = f"{book.name}.txt.gz"
        write_lines(folder / name, text.split("\n"))
        size = len(text.encode()) + 1
        cells = (name, book.author, book.title, book.year, size, words, f"gutenberg:{book.number}")
        table.append("\t".join(map(str, cells)))
    write_lines(folder / "index.tsv", table)


def strip_licence(text: str, path: Path, number: int) -> str:
    """What stands between Project Gutenberg's lines of stars, without credits and outer space."""
    start = _START.search(text)
    end = _END.search(text, start.end()) if start else None
    if not start or not end:
        raise InputError(f"{path}: no lines *** START OF and *** END OF, is this a book?")
    found = _NUMBER.search(text, 0, start.start())
    if not found or int(found[1]) != number:
        raise InputError(f"{path}: ebook {found[1] if found else 'unknown'}, expected {number}")
    body = text[start.end() : end.start()].strip()
    credit = _CREDIT.match(body)
    return body[credit.end() :].strip() if credit else body


def pg19(downloads: Path, folder: Path) -> None:
    """PG-19: a file a book, under its number, in a folder a part."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise InputError(
            "pg19 comes through the library datasets: pip install 'clusterformer[hub]'"
        ) from None
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # its retries, one by one
    for part in ("train", "validation", "test"):
        for book in load_dataset(PG19, split=part, cache_dir=str(downloads)):
            number = book["url"].rstrip("/").rpartition("/")[2]
            write_lines(folder / part / f"{number}.txt.gz", [book["text"]])
