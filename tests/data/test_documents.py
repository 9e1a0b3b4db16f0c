"""Documents of named sets: a damaged index is one line of error."""

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
