"""Documents of named sets: a damaged index is one line of error."""

import gzip
import logging
import os
from pathlib import Path

import pytest

from clusterformer.data.documents import named_documents, own_documents
from clusterformer.errors import InputError

ROWS = "".join(f"b{n}.txt.gz\t{n}\n" for n in range(51))


@pytest.mark.parametrize(
    "content", ["", "name\tbytes\n" + ROWS, "file\tbytes\n" + ROWS.replace("7", "x")]
)
def test_a_damaged_index_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "gutenberg").mkdir()
    (tmp_path / "gutenberg" / "index.tsv").write_text(content)
    with pytest.raises(InputError, match=r"index\.tsv: "):
        named_documents("gutenberg", "train", tmp_path)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="no regular file; the text is read more than once"):
        own_documents(tmp_path / "pipe")


def test_empty_files_of_a_folder_are_left_out_and_counted_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "c.txt").write_bytes(b"\xef\xbb\xbf")
    with pytest.raises(InputError, match="no text in its 3 files"):
        own_documents(tmp_path)
    for name in ("d", "e"):
        (tmp_path / f"{name}.txt").write_text("a")
    with caplog.at_level(logging.WARNING, "clusterformer"):
        parts = own_documents(tmp_path, 0.0, 0.5), own_documents(tmp_path, 0.5, 1.0)
    assert [document.path.name for part in parts for document in part] == ["d.txt", "e.txt"]
    assert caplog.messages == [f"{tmp_path}: 3 empty files left out"]


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl.gz", "t.txt", "csv", "t.csv.py"])
def test_a_table_that_is_read_as_plain_text_is_told(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / name).write_text("text")
    for _ in range(2):
        own_documents(tmp_path / name)
    assert len(caplog.messages) == (name in ("t.csv", "t.jsonl.gz"))
    assert (
        not caplog.messages or "read as plain text, with all that makes it a table" in caplog.text
    )
