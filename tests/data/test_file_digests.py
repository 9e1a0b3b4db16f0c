"""Digests of data files: a large file is read once, and again when it has changed."""

import os
from pathlib import Path

import pytest

from clusterformer.data.cache import checksum
from clusterformer.data.file_digests import KEPT_FROM, _checksum, file_digests

HOUR_AGO = 3600 * 10**9


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "corpus.txt"
    with path.open("wb") as file:
        file.truncate(KEPT_FROM)
    changed = path.stat().st_mtime_ns - HOUR_AGO
    os.utime(path, ns=(changed, changed))
    return path


def digest(path: Path) -> str:
    """Find the digest as another process would."""
    _checksum.cache_clear()
    [found] = file_digests({"train": str(path)}).values()
    return found


def test_a_large_file_is_read_once_until_it_changes(large: Path) -> None:
    first = digest(large)
    assert first == checksum(large)
    [kept] = (large.parent / "cache").glob("clusterformer/digests/*")
    kept.write_text("0" * 32)
    assert digest(large) == "0" * 32
    times = large.stat().st_atime_ns, large.stat().st_mtime_ns
    with large.open("r+b") as file:
        file.write(b"x")
    os.utime(large, ns=times)  # as a copy that keeps its time
    assert digest(large) == checksum(large) != first


def test_what_is_kept_may_be_damaged_or_not_written(large: Path) -> None:
    first = digest(large)
    [kept] = (large.parent / "cache").glob("clusterformer/digests/*")
    kept.write_bytes(b"\xff" * 32)
    assert digest(large) == first
    assert kept.read_text() == first
    kept.unlink()
    kept.parent.rmdir()
    kept.parent.write_text("")  # no folder can be made there
    assert digest(large) == first


def test_a_file_that_changed_a_moment_ago_is_read_again(large: Path) -> None:
    large.touch()
    assert digest(large) == checksum(large)
    assert not list((large.parent / "cache").glob("clusterformer/digests/*"))
