"""Damaged files of points: read, or refused in one line, whatever the damage."""

from __future__ import annotations

import gzip
import io
import time
from pathlib import Path

import numpy as np
import pytest

from clusterformer.data.points import read_points
from clusterformer.errors import InputError

SECONDS = 5.0  # at most for a file of a few kilobytes

_FRAGMENTS = [
    *(
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"\x00",
        b"\xe9",
        b"\r",
        b"\n",
        b"\n\n",
        b'"',
        b"'",
        b",",
        b";",
    ),
    *(b"\t", b"nan", b"-inf", b"1e999", b"1_0", b"0x1", b"9" * 400, b"-", b"", b" ", b"text"),
    *(b"{'descr': '<f8'}", b"(999999999999, 3)", b"|O", b"<U9", b"\x93NUMPY", b"PK\x03\x04"),
]


def originals() -> dict[str, bytes]:
    """Make a good file of each format, by its name."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 3)), np.arange(40) % 2
    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, x)
    np.savez(npz, x=x, y=y, x_test=x[:5], y_test=y[:5])
    rows = [",".join(f"{value:.3f}" for value in row) for row in x]
    table = "\n".join(f"{row},{'ab'[label]}" for row, label in zip(rows, y, strict=True)).encode()
    head = b"one,two,three,kind\n"
    words = "\n".join(f"w{i} {row.replace(',', ' ')}" for i, row in enumerate(rows)).encode()
    return {
        "t.npy": npy.getvalue(),
        "t.npz": npz.getvalue(),
        "t.npy.gz": gzip.compress(npy.getvalue(), mtime=0),
        "t.csv": head + table,
        "u.csv": b"\n".join(row.encode() for row in rows),
        "t.tsv": (head + table).replace(b",", b"\t"),
        "t.csv.gz": gzip.compress(head + table, mtime=0),
        "t.vec": words,
    }


def damage(content: bytes, rng: np.random.Generator) -> bytes:
    """Cut, flip, repeat and insert bytes, more often near the start, where headers are."""
    for _ in range(rng.integers(1, 4)):
        end = len(content) if rng.random() < 0.5 else min(len(content), 200)
        start = int(rng.integers(end + 1))
        stop = start + int(rng.integers(1, 20))
        kind = rng.integers(5)
        if kind == 0:
            content = content[:start]
        elif kind == 1:
            flipped = bytes(byte ^ (1 << int(rng.integers(8))) for byte in content[start:stop])
            content = content[:start] + flipped + content[stop:]
        elif kind == 2:
            content = content[:start] + content[stop:]
        elif kind == 3:
            content = content[:stop] + content[start:]
        else:
            content = content[:start] + _FRAGMENTS[rng.integers(len(_FRAGMENTS))] + content[start:]
    return content


def check(path: Path, options: dict) -> str | None:
    """Read a file; the message if it was refused."""
    begun = time.monotonic()
    message = None
    try:
        points = read_points(str(path), **options)
    except InputError as error:
        message = str(error)
        assert message.startswith(str(path))
        assert "\n" not in message
        assert len(message) < 1000
    else:
        assert points.whole is not None
        for x in (points.train, points.test, points.whole):
            assert x.ndim == 2
            assert x.size
            assert np.isfinite(x).all()
        assert points.ids is None or len(points.ids) == len(points.whole)
        assert points.train_labels is None or len(points.train_labels) == len(points.train)
    assert time.monotonic() - begun < SECONDS
    return message


@pytest.mark.parametrize(
    "num_files", [40, pytest.param(1000, marks=pytest.mark.slow, id="thousands")]
)
@pytest.mark.parametrize("name", originals())
def test_damaged_files_are_read_or_refused_in_one_line(
    name: str, num_files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    content = originals()[name]
    labelled: dict = {"label_column": "kind"} if name in ("t.csv", "t.tsv", "t.csv.gz") else {}
    choices = [labelled, labelled, {}, {"columns": ["1", "2"]}]
    path = tmp_path / name
    path.write_bytes(content)
    assert check(path, labelled) is None
    rng = np.random.default_rng(len(content))
    refused = 0
    for number in range(num_files):
        path.write_bytes(damage(content, rng))
        refused += check(path, choices[number % 4]) is not None
    assert refused > num_files / 4
