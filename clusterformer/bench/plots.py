"""Plots of benchmarks against the length of the sequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clusterformer.bench.report import Row
from clusterformer.plots.scaling import scaling

Panels = dict[str, dict[str, list[tuple[float, float]]]]
"""Title of a panel to a line's name to its points (length, value)."""

OPERATIONS = ("assign", "sort", "chunk attention")


def plot_mechanisms(rows: Sequence[Row], path: Path, *, title: str) -> None:
    """Draw time and peak memory per token, rows of `mechanisms.measure`."""
    panels: Panels = {}
    for panel, key, unit in (
        ("time per token, µs", "median_ms", 1e3),
        ("peak memory per token, KiB", "peak_mib", 1024),
    ):
        for row in rows:
            if row[key] is not None:
                value = row[key] * unit / (row["batch"] * row["length"])
                lines = panels.setdefault(panel, {})
                lines.setdefault(row["mechanism"], []).append((row["length"], value))
    scaling(panels, path, title=title)


def plot_kernels(rows: Sequence[Row], path: Path, *, title: str) -> None:
    """Draw the time of whole mechanisms and of full attention, rows of `kernels.measure`."""
    panels: Panels = {}
    twice = any(row["form"] == "paper" for row in rows)
    for row in rows:
        ours = row["what"] == "mechanism"
        if not row["correct"] or row["what"] in OPERATIONS:
            continue
        if twice and not ours and row["form"] == "neural":
            continue  # the same full attention as beside the form "paper"
        name = row["form"] if ours else row["what"]
        if row["form"] == "strict" and not ours:
            name += " causal"
        lines = panels.setdefault(f"{row['direction']}, ms", {})
        lines.setdefault(name, []).append((row["length"], row["median_ms"]))
    scaling(panels, path, title=title)
