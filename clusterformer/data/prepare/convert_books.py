"""Converters of Project Gutenberg's books: the set `gutenberg`, and PG-19 from the hub."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import NamedTuple

from clusterformer.data.prepare.archives import write_lines
from clusterformer.errors import InputError, missing

PG19 = "emozilla/pg19"
"""Repository of PG-19 on the hub, in a format that current versions of `datasets` read."""

_START = re.compile(r"\*\*\* ?START OF TH(?:E|IS) PROJECT GUTENBERG .*?\*\*\*", re.DOTALL)
_END = re.compile(r"^\s*(?:\*\*\* ?END OF TH|END OF (?:THE |THIS )?PROJECT GUTENBERG)", re.M | re.I)
_CREDIT = re.compile(
    r"(?:Produced|E-?text prepared|Credits|Transcribed) ?(?:by|:).*?\n\n", re.DOTALL
)
_NUMBER = re.compile(r"\[e(?:book|text) #(\d+)\]", re.I)
_TOLERANCE = 0.1  # new editions have corrections and other front matter


class GutenbergBook(NamedTuple):
    """A book: its number at Project Gutenberg, the name of its file, and its entry in the index."""

    number: int
    name: str
    author: str
    title: str
    year: int
    words: int

    @property
    def url(self) -> str:
        """Address of the plain text, on the mirror that Project Gutenberg has for programs."""
        return f"https://aleph.pglaf.org/cache/epub/{self.number}/pg{self.number}.txt"


def gutenberg_books() -> list[GutenbergBook]:
    """List the books of the set `gutenberg`: gutenberg.tsv, with the word counts of about 2016."""
    lines = Path(__file__).with_name("gutenberg.tsv").read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines[1:])
    return [
        GutenbergBook(int(number), name, author, title, int(year), int(words))
        for number, name, author, title, year, words in rows
    ]


def convert_gutenberg(downloads: Path, folder: Path) -> None:
    """Convert the books: without licence and credits, and with an index.

    Raises:
        InputError: if a file is another book, or a tenth longer or shorter than it should be.
    """
    table = ["file\tauthor\ttitle\tyear\tbytes\twords\torigin"]
    for book in gutenberg_books():
        path = downloads / f"pg{book.number}.txt"
        text = strip_licence(path.read_text(encoding="utf-8-sig"), path, book.number)
        words = len(text.split())
        if abs(words - book.words) > _TOLERANCE * book.words:
            raise _another(path, f"{words:,} words, expected about {book.words:,}")
        name = f"{book.name}.txt.gz"
        write_lines(folder / name, text.split("\n"))
        size = len(text.encode()) + 1
        cells = (name, book.author, book.title, book.year, size, words, f"gutenberg:{book.number}")
        table.append("\t".join(map(str, cells)))
    write_lines(folder / "index.tsv", table)


def strip_licence(text: str, path: Path, number: int) -> str:
    """Return the text between Project Gutenberg's lines of stars, without the credits."""
    start = _START.search(text)
    end = _END.search(text, start.end()) if start else None
    if not start or not end:
        raise _another(path, "no lines *** START OF and *** END OF, is this a book?")
    found = _NUMBER.search(text, 0, start.start())
    if not found or int(found[1]) != number:
        raise _another(path, f"ebook {found[1] if found else 'unknown'}, expected {number}")
    body = text[start.end() : end.start()].strip()
    credit = _CREDIT.match(body)
    return body[credit.end() :].strip() if credit else body


def _another(path: Path, found: str) -> InputError:
    return InputError(f"{path}: {found}; remove it to fetch it again")


def convert_pg19(downloads: Path, folder: Path) -> None:
    """Convert PG-19: a file a book, named by its number, in a folder a split."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise missing("pg19 comes through the library datasets", "hub") from None
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # it reports each retry
    for part in ("train", "validation", "test"):
        for book in load_dataset(PG19, split=part, cache_dir=str(downloads)):
            number = book["url"].rstrip("/").rpartition("/")[2]
            write_lines(folder / part / f"{number}.txt.gz", [book["text"]])
