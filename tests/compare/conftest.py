"""What tests of `compare` share."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from forked import Process

from clusterformer.compare import runner


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Runs start in a moment, in the test's folder."""
    monkeypatch.chdir(tmp_path)
    module = SimpleNamespace(**{**vars(subprocess), "Popen": Process})
    monkeypatch.setattr(runner, "subprocess", module)
