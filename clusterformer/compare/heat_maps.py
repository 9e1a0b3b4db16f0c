"""Heat maps of the page: a measure by an option of the model and one of the data."""

from __future__ import annotations

from statistics import fmean
from typing import NamedTuple

import numpy as np

from clusterformer.compare.configs import differences
from clusterformer.compare.plan_file import is_number
from clusterformer.compare.plots import to_svg
from clusterformer.compare.statistics import Summary
from clusterformer.plots.style import INK, QUIET, figure


class Grid(NamedTuple):
    """A measure of one mechanism, mean over its runs, for each pair of values of two options."""

    mechanism: str
    down: str  # dotted key of an option of the model
    across: str  # dotted key of an option of the data
    rows: list[float]
    columns: list[float]
    table: np.ndarray


def heat_maps(summary: Summary) -> str | None:
    """Draw a panel for each mechanism whose runs differ in two numbers: of the model, of the data.

    Returns:
        SVG; None where there is no mechanism with every pair of the two.
    """
    mechanisms = dict.fromkeys(str(r.config.get("model.attention")) for r in summary.results)
    grids = [grid for name in mechanisms if (grid := _grid(summary, name))]
    if not grids:
        return None
    means = np.concatenate([grid.table.ravel() for grid in grids])
    known = means[np.isfinite(means)]  # a run may have diverged
    low, high = (known.min(), known.max()) if len(known) else (0.0, 1.0)
    picture = figure(0.4 + 3.3 * len(grids), 2.8)
    panels = picture.subplots(1, len(grids), squeeze=False).flat
    for axes, grid in zip(panels, grids, strict=True):
        axes.imshow(grid.table, cmap="Blues", vmin=low, vmax=high, aspect="auto")
        for (row, column), value in np.ndenumerate(grid.table):
            ink = "white" if value - low > 0.5 * (high - low) else "black"
            axes.text(column, row, f"{value:.3g}", ha="center", va="center", fontsize=9, color=ink)
        axes.set_title(grid.mechanism, fontsize=9, fontweight="bold", color=INK, loc="left")
        axes.set_xticks(range(len(grid.columns)), [f"{number:g}" for number in grid.columns])
        axes.set_yticks(range(len(grid.rows)), [f"{number:g}" for number in grid.rows])
        axes.set_xlabel(grid.across, fontsize=9, color=QUIET)
        axes.set_ylabel(grid.down.rpartition(".")[2], fontsize=9, color=QUIET)
        axes.tick_params(labelsize=8, colors=QUIET, length=0)
        axes.spines[:].set_visible(False)
    return to_svg(picture)


def _grid(summary: Summary, mechanism: str) -> Grid | None:
    runs = [r for r in summary.results if str(r.config.get("model.attention")) == mechanism]
    different = differences([run.config for run in runs])
    down = [key for key in different if key.startswith("model.")]
    across = [key for key in different if key.startswith("data.")]
    if len(down) != 1 or len(across) != 1:
        return None
    if not all(map(is_number, different[down[0]] + different[across[0]])):
        return None
    found: dict[tuple[float, float], list[float]] = {}
    for run in runs:
        found.setdefault((run.config[down[0]], run.config[across[0]]), []).append(
            summary.value(run)
        )
    rows, columns = (sorted(set(numbers)) for numbers in zip(*found, strict=True))
    if len(found) < len(rows) * len(columns):
        return None
    table = np.array([[fmean(found[row, column]) for column in columns] for row in rows])
    return Grid(mechanism, down[0], across[0], rows, columns, table)
