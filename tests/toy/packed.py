"""Text of plain and packed files."""

import gzip
from pathlib import Path


def lines_in(path: Path) -> list[str]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    assert text.endswith("\n")
    return text[:-1].split("\n")
