"""Wikipedia: tables as Wikimedia publishes them, made here, read back by the tasks' own reader."""

import re
from itertools import chain
from pathlib import Path

import pytest
from packed import lines_in

from clusterformer.data.documents import document_pieces, named_documents
from clusterformer.data.prepare import archives, convert_wikipedia
from clusterformer.data.prepare.catalogue import CONVERTERS
from clusterformer.errors import InputError

parquet = pytest.importorskip("pyarrow.parquet")


def table(path: Path, articles: dict[str, str]) -> None:
    """A table with the columns of wikimedia/wikipedia, some rows a group."""
    import pyarrow

    rows = {
        "id": list(articles),
        "url": [f"https://simple.wikipedia.org/wiki/{number}" for number in articles],
        "title": [f"Title {number}" for number in articles],
        "text": list(articles.values()),
    }
    parquet.write_table(pyarrow.table(rows), path, row_group_size=100)


NAME = "train-00000-of-00001.parquet"


def test_articles_become_texts_of_three_parts(
    downloads: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    articles = {f"{i}": f"April {i} is\n\na month.\n\nIt — {i}.\n" for i in range(3000)}
    table(downloads / NAME, articles)
    monkeypatch.setitem(convert_wikipedia.NUM_ARTICLES, "wikipedia-simple", len(articles))
    (folder := tmp_path / "wikipedia-simple").mkdir()
    CONVERTERS["wikipedia-simple"](downloads, folder)
    found = [
        "".join(document_pieces(named_documents("wikipedia-simple", part, tmp_path)))
        for part in ("train", "valid", "test")
    ]
    numbers = [re.findall(r"It — (\d+)", text) for text in found]
    assert [len(part) for part in numbers] == [2995, 2, 3]
    assert sorted(chain(*numbers)) == sorted(articles)
    assert found[0].startswith("April 0 is\n\na month.\n\nIt — 0.\n\nApril 1 is\n")
    assert lines_in(folder / "valid.txt.gz")[1:4] == ["", "a month.", ""]


def test_another_number_of_articles_is_refused(downloads: Path, folder: Path) -> None:
    table(downloads / NAME, {"1": "April."})
    with pytest.raises(InputError, match="wikipedia-simple: 1 articles, expected 241,787"):
        CONVERTERS["wikipedia-simple"](downloads, folder)


def test_a_small_file_of_endless_text_stops(
    downloads: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MIN_UNPACKED", 2**20)
    monkeypatch.setattr(convert_wikipedia, "MIN_UNPACKED", 2**20)
    table(downloads / NAME, {f"{i}": "a" * 10_000 for i in range(1000)})
    with pytest.raises(InputError, match=f"{NAME}: more than 30 times its size unpacked"):
        CONVERTERS["wikipedia-simple"](downloads, folder)
