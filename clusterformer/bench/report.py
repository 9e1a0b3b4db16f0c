"""The JSON file of a benchmark: environment, settings and rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterformer.whole_files import write_text

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
    write_text(path, json.dumps(report, indent=1) + "\n")


def portable_environment() -> Mapping[str, Any]:
    """Describe command, versions and hardware, and the time, without this machine's directory."""
    from clusterformer.training.environment import describe_environment, time_now

    environment = {**describe_environment(), "written": time_now()}
    return {key: value for key, value in environment.items() if key != "folder"}
