"""Texts read in pieces are those read whole; a large corpus needs little memory."""

import gzip
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from clusterformer.data import text_pieces as module
from clusterformer.data.documents import Document
from clusterformer.data.tables import read_text
from clusterformer.data.text_pieces import text_pieces
from clusterformer.errors import InputError

TEXT = "\ufeffone\ntwo ü\n\nthree \x0c four\r\n" * 7 + "the end"


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
@pytest.mark.parametrize("ending", [".txt", ".txt.gz"])
def test_the_pieces_are_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, encoding: str, ending: str
) -> None:
    monkeypatch.setattr(module, "_SIZE", size)
    path = tmp_path / f"a{ending}"
    content = TEXT.replace("\ufeff", "" if encoding == "latin-1" else "\ufeff").encode(encoding)
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    pieces = list(text_pieces(path, encoding))
    assert "".join(pieces) == read_text(path, encoding)
    assert all(piece.endswith("\n") for piece in pieces[:-1])


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_shares_meet_at_line_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(module, "_SIZE", size)
    path = tmp_path / "a.txt"
    path.write_text(TEXT, encoding="utf-8", newline="")
    whole = read_text(path)
    for borders in ([0.0, 0.8, 0.9, 1.0], [0.0, 0.01, 0.5, 0.98, 1.0]):
        parts = [Document(path, a, b).read() for a, b in pairwise(borders)]
        assert "".join(parts) == whole
        offset = 0
        for part, border in zip(parts, borders[1:-1], strict=False):
            offset += len(part)
            assert offset == whole.rfind("\n", 0, round(border * len(whole))) + 1


def test_what_is_not_in_the_encoding_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a line\n" * 200_000 + b"\xff\n")
    with pytest.raises(InputError, match=r"a\.txt:200001: bytes ff are not utf-8"):
        list(text_pieces(path))


def test_a_character_that_is_cut_off_stands_in_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("one\ntwo\n".encode("utf-16-le") + b"\n")
    for read in (read_text, text_pieces):
        with pytest.raises(InputError, match=r"a\.txt:3: bytes 0a are not utf-16-le"):
            list(read(path, "utf-16-le"))


PROGRAM = """
import resource, sys
from pathlib import Path
from clusterformer.tasks.masked_language_modeling import MaskedLanguageModeling
task = MaskedLanguageModeling(train="big.txt", valid="small.txt", test="small.txt",
                              tokenizer="bpe", vocab_size=2000, context=128)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = peak()
task.setup("fit")
for number, batch in enumerate(task.train_dataloader()):
    if number == 50:
        break
print(peak() - before, len(task._streams["train"]))
"""


@pytest.mark.slow
def test_a_corpus_needs_memory_for_pieces_only(tmp_path: Path) -> None:
    line = " ".join(f"word{number % 977} and" for number in range(2000)) + "\n"
    lines = 64 * 2**20 // len(line)
    with (tmp_path / "big.txt").open("w") as file:
        for _ in range(lines):
            file.write(line)
    (tmp_path / "small.txt").write_text(line * 3)
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    peak, tokens = map(int, done.stdout.split())
    assert tokens > 10_000_000
    assert peak < 300  # MiB beside torch; the text itself has 64, its tokens as Python numbers 500
