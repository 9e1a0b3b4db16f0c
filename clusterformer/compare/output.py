"""The files of a comparison: runs.csv, tables in Markdown and LaTeX, and the page."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from clusterformer.compare.jobs import RECORD
from clusterformer.compare.page import page
from clusterformer.compare.statistics import Summary
from clusterformer.compare.tables import latex, markdown, runs_csv
from clusterformer.errors import InputError
from clusterformer.whole_files import write_text


def refuse_planned(folder: Path) -> None:
    """Refuse a directory for the table of single runs if a comparison with its runs is in it.

    Its own table and page would be replaced.

    Raises:
        InputError: if there is one.
    """
    if next(folder.glob(f"*/*/*/{RECORD}"), None):
        raise InputError(f"{folder}: holds a comparison with its runs; choose another --out")


def write_files(summary: Summary, folder: Path, *, title: str, command: str) -> list[str]:
    """Write the files of a comparison; each is complete or not there at all.

    Args:
        summary: The table.
        folder: Directory of the comparison.
        title: Title of the page.
        command: Command line that makes the page, shown on it.

    Returns:
        Names of the files; index.html is not among them where matplotlib is missing.
    """
    files = {
        "runs.csv": runs_csv(summary),
        "table.md": markdown(summary),
        "table.tex": latex(summary),
    }
    with suppress(ImportError):
        files["index.html"] = page(summary, title, command)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_text(folder / name, content, shared=True)
    return list(files)
