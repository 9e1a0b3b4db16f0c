"""The JSON file of a benchmark: environment, settings and rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""One measurement: what was measured, its times in milliseconds, memory in MiB and so on."""


def write_report(path: Path, rows: Sequence[Row], **sections: Any) -> None:
    """Write a report as JSON, and make its directory where there is none.

    Args:
        path: The file to write.
        rows: All that was measured.
        sections: Further entries, written between environment and rows.
    """
    report = {"environment": portable_environment(), **sections, "rows": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as partial:
        partial.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a path to write, which replaces the file when all is written."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def portable_environment() -> Mapping[str, Any]:
    """Describe command, versions and hardware without the working directory of this machine."""
    from clusterformer.training.environment import describe_environment

    environment = describe_environment()
    return {key: value for key, value in environment.items() if key != "folder"}
