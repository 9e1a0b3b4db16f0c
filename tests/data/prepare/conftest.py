"""Folders of what a publisher offers and of what is made of it."""

from pathlib import Path

import pytest


@pytest.fixture
def downloads(tmp_path: Path) -> Path:
    (tmp_path / "downloads").mkdir()
    return tmp_path / "downloads"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "set").mkdir()
    return tmp_path / "set"
