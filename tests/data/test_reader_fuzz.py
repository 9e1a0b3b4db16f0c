"""Every reader of the user's texts, given damaged files: what it reads, or one line of error.

A reader written tomorrow belongs into READERS.
"""

import gzip
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterformer.cli.predict import _chunks
from clusterformer.cli.predict_table import Table
from clusterformer.data.bitext import Bitext
from clusterformer.data.columns import find_columns
from clusterformer.data.documents import Document, own_documents
from clusterformer.data.labelled_text import read_pairs, read_rows
from clusterformer.data.tokenizers import WordTokenizer
from clusterformer.data.word_vectors import word_vectors
from clusterformer.errors import InputError

ROWS = [[f"a film number {n} was", f"good «{n}» 日本", str(n % 2)] for n in range(12)]
HEADER = ["first", "second", "label"]
CSV = "".join(f'"{a}","{b}",{c}\n' for a, b, c in [HEADER, *ROWS])
TSV = "".join("\t".join(row) + "\n" for row in [HEADER, *ROWS])
JSONL = "".join(f"{json.dumps(dict(zip(HEADER, row, strict=True)))}\n" for row in ROWS)
VECTORS = "3 4\n" + "".join(f"word{n} 0.5 -1e-3 2 {n}\n" for n in range(3))

NASTY = [
    *(
        b"\x00",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"\t",
        b'"',
        b"'",
    ),
    *(b"[" * 3000, b"{" * 3000, b'{"a":' * 3000, b"9" * 5000, b"-", b"1e999", b"nan", b"\\ud800"),
    *(b"null", b"true", b"[]", b"{}", b",,,,", b"\xe2\x80\xa8", b"\x1f\x8b", b" " * 5000, b"\\"),
]


def read_texts(path: Path) -> None:
    document = own_documents(path, 0.1, 0.9)[0]
    document.read()
    "".join(Document(path).pieces("latin-1"))


def read_lines(path: Path) -> None:
    with path.open("rb") as file:
        for _ in _chunks(file.fileno(), str(path), lambda line: None):
            pass


def labels(path: Path) -> None:
    read_rows(path, text_column="first")


def pairs(path: Path) -> None:
    read_pairs(path, group_column=1)


def columns(path: Path) -> None:
    find_columns(path, {"text_column": None, "label_column": None})


def table(path: Path) -> None:
    read = Table(str(path), {"text_column": "first"})
    rows = [(row, {"label": "x"}) for row in range(len(read.texts))]
    for layout in ("csv", "tsv", "jsonl"):
        list(read.lines(layout, rows, ["label"]))


def bitext(path: Path) -> None:
    for part in Bitext(path, path).hold_out():
        list(part)
    list(Bitext(path, path, (0, 2)))


def vectors(path: Path) -> None:
    word_vectors(path, WordTokenizer(["word0", "word1"]))


READERS: list[tuple[Callable[[Path], None], str, str]] = [
    *((reader, "a.csv", CSV) for reader in (labels, pairs, columns, table)),
    *((reader, "a.tsv", TSV) for reader in (labels, pairs, columns, table, bitext)),
    *((reader, "a.jsonl", JSONL) for reader in (labels, pairs, columns, table)),
    *((reader, "a.tsv.gz", TSV) for reader in (labels, bitext)),
    (vectors, "a.txt", VECTORS),
    (vectors, "a.vec.gz", VECTORS),
    (read_texts, "a.txt", TSV),
    (read_texts, "a.txt.gz", TSV),
    (read_lines, "a.txt", TSV),
]


def mutations(content: bytes, rng: random.Random) -> Iterator[bytes]:
    """Yield damaged contents without end."""
    while True:
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            start = rng.randrange(len(damaged) + 1)
            stop = min(len(damaged), start + rng.choice([0, 1, 5, 50]))
            kind = rng.randrange(5)
            if kind == 0:
                del damaged[start:]
            elif kind == 1 and damaged:
                damaged[min(start, len(damaged) - 1)] ^= 1 << rng.randrange(8)
            elif kind == 2:
                damaged[start:stop] = damaged[start:stop] * rng.randint(0, 3)
            else:
                damaged[start:stop] = rng.choice(NASTY)
        yield bytes(damaged)


def attack(reader: Callable[[Path], None], path: Path, content: str, count: int) -> int:
    """Return the number of inputs that were refused; anything but an InputError is raised."""
    rng = random.Random(f"{reader.__name__} {path.name} {count}")
    is_packed = path.suffix == ".gz"
    whole = gzip.compress(content.encode(), mtime=0) if is_packed else content.encode()
    refused = 0
    for number, damaged in enumerate(mutations(whole, rng)):
        if number == count:
            return refused
        path.write_bytes(damaged)
        try:
            reader(path)
        except InputError as error:
            refused += 1
            message = str(error)
            if "\n" in message or len(message) > 2000:
                pytest.fail(f"not one line: {message[:300]!r}")
    raise AssertionError


@pytest.mark.parametrize(
    ("reader", "name", "content"), READERS, ids=[f"{r.__name__}-{n}" for r, n, _ in READERS]
)
@pytest.mark.parametrize("count", [25, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_damaged_file_is_read_or_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader, name: str, content: str, count: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert attack(reader, tmp_path / name, content, count) > 0
