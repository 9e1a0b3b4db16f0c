"""Windows of texts for a pretrained model."""

from pathlib import Path

import pytest

from clusterformer.data.text_windows import sample_windows
from clusterformer.errors import InputError


def test_a_table_is_never_read_as_plain_text(tmp_path: Path) -> None:
    """Its header, commas and labels would be taken for the text."""
    path = tmp_path / "reviews.CSV"
    path.write_text("text,label\na fine film,1\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"reviews.CSV: unknown ending '\.CSV'"):
        sample_windows([str(path)], None, 24, 1)


def test_a_column_of_plain_text_is_refused() -> None:
    with pytest.raises(InputError, match=r"--text_column is for tables, .*; got a.txt, b.txt.gz"):
        sample_windows(["a.txt", "b.txt.gz"], None, 24, 1, column="text")
