"""Converter of Python's standard library: source code, in which names come back far away."""

from __future__ import annotations

import platform
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path

from clusterformer.data.named_sets import Split
from clusterformer.data.prepare.archives import write_lines
from clusterformer.errors import InputError

# Whole modules, the same ones in all versions of Python.
_HELD_OUT: dict[str, Split] = {
    **dict.fromkeys(("argparse", "inspect", "logging", "tarfile"), "valid"),
    **dict.fromkeys(("asyncio", "email", "json", "unittest", "zipfile"), "test"),
}
# Tests repeat the modules, and those of other modules are in no part; the others hold tables.
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "encodings", "pydoc_data"}


def convert_stdlib(downloads: Path, folder: Path) -> None:
    """Copy the standard library of the Python that runs: a text a file, in a folder a split.

    Nothing is downloaded. `index.tsv` says of which version each file is.

    Raises:
        InputError: if this Python has no source files of its library.
    """
    table = ["file\tbytes\torigin"]
    for path, module in _sources(Path(sysconfig.get_path("stdlib"))):
        with tokenize.open(path) as file:  # in the encoding that the file names
            text = file.read()
        if not text.strip():
            continue
        split = _HELD_OUT.get(module.partition(".")[0].lstrip("_"), "train")
        name = f"{split}/{module}.txt.gz"
        write_lines(folder / name, text.removesuffix("\n").split("\n"))
        table.append(f"{name}\t{len(text.encode())}\tpython:{platform.python_version()}")
    missing = {"train", "valid", "test"} - {line.partition("/")[0] for line in table}
    if missing:
        raise InputError(
            f"stdlib: no source files of Python's library in {sysconfig.get_path('stdlib')}"
        )
    write_lines(folder / "index.tsv", table)


def _sources(library: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of the library with the names of their modules."""
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if _LEFT_OUT.isdisjoint(parts):
            yield path, ".".join(parts)
