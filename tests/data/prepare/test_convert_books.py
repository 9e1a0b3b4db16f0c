"""Books of Project Gutenberg without licence, and PG-19."""

import gzip
from pathlib import Path

import pytest
from packed import lines_in

from clusterformer.data.prepare import convert_books
from clusterformer.data.prepare.catalogue import CONVERTERS
from clusterformer.errors import InputError

BOOK = """\ufeffThe Project Gutenberg eBook of A Tale

Title: A Tale

Release Date: May 27, 2012 [eBook #7]

*** START OF THE PROJECT GUTENBERG EBOOK A LONG
TALE ***




Produced by A. Volunteer and
another one

A TALE

It was “long”.

 THE END

End of the Project Gutenberg EBook of A Tale
*** END OF THE PROJECT GUTENBERG EBOOK A TALE ***
Licence
"""


@pytest.fixture
def tale(monkeypatch: pytest.MonkeyPatch) -> None:
    tale = convert_books.GutenbergBook(7, "a-tale", "A. Writer", "A Tale", 1900, 7)
    monkeypatch.setattr(convert_books, "gutenberg_books", lambda: [tale])


@pytest.mark.usefixtures("tale")
def test_books_lose_licence_and_credits(downloads: Path, folder: Path) -> None:
    (downloads / "pg7.txt").write_text(BOOK, encoding="utf-8", newline="\r\n")
    CONVERTERS["gutenberg"](downloads, folder)
    text = gzip.decompress((folder / "a-tale.txt.gz").read_bytes()).decode()
    assert text == "A TALE\n\nIt was “long”.\n\n THE END\n"
    header, row = (line.split("\t") for line in lines_in(folder / "index.tsv"))
    found = dict(zip(header, row, strict=True))
    assert found["file"] == "a-tale.txt.gz"
    assert int(found["bytes"]) == len(text.encode())
    assert int(found["words"]) == 7


@pytest.mark.usefixtures("tale")
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("#7]", "#8]", "ebook 8, expected 7"),
        ("*** START", "START", r"is this a book\?; remove it to fetch it again"),
        ("It was", "It was not so very", "10 words, expected about 7"),
    ],
)
def test_another_book_is_refused(
    downloads: Path, folder: Path, old: str, new: str, message: str
) -> None:
    (downloads / "pg7.txt").write_text(BOOK.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        CONVERTERS["gutenberg"](downloads, folder)


def test_pg19_comes_through_the_hubs_library(
    downloads: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    repository = tmp_path / "repository" / "data"
    repository.mkdir(parents=True)
    for part in ("train", "validation", "test"):
        rows = {"url": [f"http://www.gutenberg.org/ebooks/{part}9"], "text": [f"{part}\nbook"]}
        path = repository / f"{part}-00000-of-00001.parquet"
        datasets.Dataset.from_dict(rows).to_parquet(str(path))
    monkeypatch.setattr(convert_books, "PG19", str(repository.parent))
    CONVERTERS["pg19"](downloads, folder)
    assert lines_in(folder / "validation" / "validation9.txt.gz") == ["validation", "book"]
    assert {path.name for path in folder.iterdir()} == {"train", "validation", "test"}
