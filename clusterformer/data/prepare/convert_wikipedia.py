"""Converter of Wikipedia: the articles as plain text, from the tables that Wikimedia publishes.

Wikimedia has taken markup, tables and references out of its dumps of November 2023. The tables are
in Apache Parquet, a row an article: id, url, title, text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from clusterformer.data.prepare.archives import MAX_RATIO, MIN_UNPACKED, Converter, open_output
from clusterformer.errors import InputError

NUM_ARTICLES = {"wikipedia": 6_407_814, "wikipedia-simple": 241_787}
"""Published number of articles of each set."""

_TABLES = (
    "https://huggingface.co/datasets/wikimedia/wikipedia/resolve/"
    "b04c8d1ceb2f5cd4588862100d08de323dccfbaa"
)
_NUM_ENGLISH = 41
_HELD_OUT = {0: "valid", 1: "test"}  # of a thousand articles one validates and one tests
_BATCH = 500  # articles in memory at a time


class Article(NamedTuple):
    """An article: its number in Wikipedia, and its text."""

    number: str
    text: str


def english_tables() -> list[str]:
    """List the addresses of the tables of English Wikipedia."""
    return [
        f"{_TABLES}/20231101.en/train-{number:05d}-of-{_NUM_ENGLISH:05d}.parquet"
        for number in range(_NUM_ENGLISH)
    ]


def wikipedia_converter(name: str) -> Converter:
    """Make a converter for a Wikipedia: a file of articles for each table, and two held out.

    An empty line ends an article. Its number decides whether it is held out, so that it stays so
    in every preparation. A batch of articles is in memory at a time, whatever the tables' size.
    """

    def convert(downloads: Path, folder: Path) -> None:
        total = 0
        (folder / "train").mkdir()
        with ExitStack() as stack:
            held = {
                part: stack.enter_context(open_output(folder / f"{part}.txt.gz"))
                for part in _HELD_OUT.values()
            }
            for table in sorted(downloads.glob("*.parquet")):
                with open_output(folder / "train" / f"{table.stem}.txt.gz") as train:
                    for article in read_articles(table):
                        digest = blake2b(article.number.encode(), digest_size=8).digest()
                        part = _HELD_OUT.get(int.from_bytes(digest, "big") % 1000)
                        file = held[part] if part else train
                        file.write(f"{article.text.strip()}\n\n".encode())
                        total += 1
        if total != NUM_ARTICLES[name]:
            raise InputError(f"{name}: {total:,} articles, expected {NUM_ARTICLES[name]:,}")

    return convert


def read_articles(table: Path) -> Iterator[Article]:
    """Yield the articles of a table.

    Raises:
        InputError: if they are more than 30 times as large as the table.
    """
    import pyarrow.parquet

    rest = max(MIN_UNPACKED, MAX_RATIO * table.stat().st_size)
    # what is buffered ahead stays in memory to the end of the table
    with pyarrow.parquet.ParquetFile(table, pre_buffer=False) as rows:
        for batch in rows.iter_batches(batch_size=_BATCH, columns=["id", "text"]):
            rest -= batch.nbytes
            if rest < 0:
                raise InputError(f"{table}: more than {MAX_RATIO} times its size unpacked")
            columns = (batch.column(name).to_pylist() for name in ("id", "text"))
            yield from map(Article, *columns)
