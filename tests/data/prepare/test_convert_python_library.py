"""The standard library of the Python that runs these tests, as a corpus."""

import gzip
import inspect
import json.decoder
import platform
import sysconfig
from pathlib import Path

import pytest

from clusterformer.data.documents import named_documents
from clusterformer.data.named_sets import SPLITS
from clusterformer.data.prepare.catalogue import CONVERTERS
from clusterformer.data.prepare.prepare_set import prepare_set
from clusterformer.errors import InputError


def test_modules_are_whole_and_in_one_split(tmp_path: Path) -> None:
    told: list[str] = []
    mirror = "http://127.0.0.1:9"
    folder = prepare_set("stdlib", root=tmp_path, mirror=mirror, report=told.append)
    assert "the mirror is not used" in told[0]
    modules = {
        split: {file.name.removesuffix(".txt.gz") for file in (folder / split).iterdir()}
        for split in SPLITS
    }
    top = {split: {name.partition(".")[0] for name in modules[split]} for split in SPLITS}
    assert top["train"].isdisjoint(top["valid"] | top["test"])
    assert {"argparse", "logging"} <= top["valid"]
    assert {"json", "asyncio"} <= top["test"]
    assert "tokenize" in modules["train"]
    assert not any("test" in name.split(".") for name in modules["train"])
    found = gzip.decompress((folder / "test" / "json.decoder.txt.gz").read_bytes()).decode()
    assert found == inspect.getsource(json.decoder)
    documents = {split: named_documents("stdlib", split, tmp_path) for split in SPLITS}
    assert {split: len(documents[split]) for split in SPLITS} == {
        split: len(modules[split]) for split in SPLITS
    }
    index = (folder / "index.tsv").read_text().splitlines()
    assert len(index) == 1 + sum(map(len, modules.values()))
    assert index[1].endswith(f"\tpython:{platform.python_version()}")


def test_a_python_without_sources_is_refused(
    downloads: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(downloads))
    with pytest.raises(InputError, match="no source files of Python's library in"):
        CONVERTERS["stdlib"](downloads, folder)
