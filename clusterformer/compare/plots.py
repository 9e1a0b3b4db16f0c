"""Plots of the page, as SVG: validation curves, quality against cost, and trends along a key."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from clusterformer.compare.configs import differences, name_rows
from clusterformer.compare.notes import of_repetition
from clusterformer.compare.plan_file import is_number
from clusterformer.compare.results import Result
from clusterformer.compare.statistics import AVERAGE, Summary
from clusterformer.plots.style import (
    FAINT,
    INK,
    QUIET,
    figure,
    line_style,
    missing_glyphs_as_boxes,
    plain_axes,
)

NUM_MARKERS = 6
"""Number of markers on a learning curve, whose points may be many."""

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def validation_curves(summary: Summary, by: Literal["step", "second"] = "step") -> str | None:
    """Draw validation against time, in a panel for each column, as mean and range of the seeds.

    Args:
        summary: The table.
        by: Measure of time; seconds are those of training and validation, evenly spread over steps.

    Returns:
        SVG; None where no run validated more than once.
    """
    panels = [column for column in summary.columns if column != AVERAGE]
    drawn = [
        column for column in panels if any(len(r.curve) > 1 for r in _of(summary, column=column))
    ]
    if not drawn:
        return None
    across = min(3, len(drawn))
    down = -(-len(drawn) // across)
    picture = figure(max(6.0, 4.0 * across), 2.9 * down + 0.5)
    grid = list(picture.subplots(down, across, squeeze=False).flat)
    handles: dict[str, Any] = {}
    for axes, column in zip(grid, drawn, strict=False):
        monitor = _of(summary, column=column)[0].monitor
        plain_axes(axes, column or monitor, f"{by}s")
        axes.set_ylabel(monitor if column else "", fontsize=9, color=QUIET)
        for row in summary.rows:
            curves = [
                np.array(r.curve) * [[1.0 if by == "step" else r.seconds_a_step, 1.0]]
                for r in _of(summary, row=row, column=column)
                if len(r.curve) > 1
            ]
            if not curves:
                continue
            steps = np.unique(np.concatenate([curve[:, 0] for curve in curves]))
            steps = steps[steps <= min(curve[-1, 0] for curve in curves)]
            values = np.stack([np.interp(steps, *curve.T) for curve in curves])
            style = line_style(summary.rows.index(row))
            low, high = values.min(0), values.max(0)
            axes.fill_between(steps, low, high, color=style["color"], alpha=0.16, lw=0)
            (handles[row],) = axes.plot(
                steps, values.mean(0), linewidth=1.6, markersize=4,
                markevery=-(-len(steps) // NUM_MARKERS), **style,
            )  # fmt: skip
    for axes in grid[len(drawn) :]:
        axes.set_visible(False)
    _legend(picture, handles)
    return to_svg(picture)


def quality_against(summary: Summary, cost: str) -> str | None:
    """Draw the mean of the last column against a cost, a point for each row that has both.

    Returns:
        SVG; None where there are fewer than two points, or they all have one cost.
    """
    column = summary.columns[-1]
    rows = [
        row for row in summary.rows if (row, column) in summary.cells and cost in summary.costs[row]
    ]
    if len({summary.costs[row][cost] for row in rows}) < 2:
        return None
    picture = figure(5.2, 3.4)
    axes = picture.subplots()
    plain_axes(axes, f"{summary.metric}, {column}" if column else summary.metric, cost)
    handles: dict[str, Any] = {}
    for row in rows:
        x, y = summary.costs[row][cost], summary.cells[row, column].mean
        style = line_style(summary.rows.index(row)) | {"linestyle": "none"}
        (handles[row],) = axes.plot([x], [y], zorder=3, markersize=6, **style)
    axes.margins(0.1)
    _legend(picture, handles, 2)  # names beside the points would collide
    return to_svg(picture)


def along_a_key(summary: Summary) -> dict[str, str]:
    """Draw measures and costs along each numeric key of which one model has three values or more.

    The runs of a line differ in that key alone: beside other differences nobody could tell what the
    key does.

    Returns:
        Key to SVG.
    """
    drawings = {}
    for key in differences([result.config for result in summary.results]):
        lines = _lines(summary, key)
        if not lines:
            continue
        numbers = sorted({number for points in lines.values() for number in points})
        picture = figure(10.5, 3.2)
        panels = picture.subplots(1, 3)
        handles: dict[str, Any] = {}
        for axes, (title, read) in zip(panels, _measures(summary).items(), strict=True):
            plain_axes(axes, title, key.rpartition(".")[2])
            if numbers[0] > 0:
                axes.set_xscale("log", base=2)
            for index, (name, points) in enumerate(lines.items()):
                means = [fmean(map(read, points[number])) for number in sorted(points)]
                (handles[name],) = axes.plot(
                    sorted(points), means, markersize=4, linewidth=1.5, **line_style(index)
                )
            axes.set_xticks(numbers, [f"{n:g}" for n in numbers], minor=False)
            axes.minorticks_off()
        _legend(picture, handles)
        drawings[key] = to_svg(picture)
    return drawings


def _measures(summary: Summary) -> dict[str, Any]:
    return {
        summary.metric: summary.value,
        "seconds an epoch": lambda result: result.seconds_an_epoch,
        "peak MiB": lambda result: result.peak_mib,
    }


def _lines(summary: Summary, key: str) -> dict[str, dict[float, list[Result]]]:
    """Group the runs of a column that differ in a key alone, but for what repetitions differ in.

    Returns:
        For each group with three values of the key or more: its mechanism, the options that
        distinguish it from the other groups, and its column; to each value and its runs.
    """
    runs = [result for result in summary.results if is_number(result.config.get(key))]
    skipped = of_repetition(runs)
    if key in skipped:
        return {}
    groups: dict[str, tuple[dict[str, Any], dict[float, list[Result]]]] = {}
    for run in runs:
        others = {k: v for k, v in run.config.items() if k != key and k not in skipped}
        others |= {"data": run.column, "data.name": run.column}
        _, points = groups.setdefault(repr(sorted(others.items())), (others, {}))
        points.setdefault(run.config[key], []).append(run)
    drawn = [group for group in groups.values() if len(group[1]) > 2]
    names = name_rows([others for others, _ in drawn])
    return {
        ", ".join(filter(None, (row, column.removeprefix(", ")))): points
        for (row, column), (_, points) in zip(names, drawn, strict=True)
    }


def _of(summary: Summary, column: str, row: str | None = None) -> Sequence[Result]:
    return [r for r in summary.results if r.column == column and row in (None, r.row)]


def _legend(picture: Figure, handles: dict[str, Any], ncols: int = 3) -> None:
    if len(handles) > 1:
        width, height = picture.get_size_inches()
        entry = 0.5 + 0.08 * max(map(len, handles))  # inches: a line, and 9 pt a letter
        ncols = max(1, min(ncols, len(handles), int(width / entry)))
        picture.set_size_inches(width, height + 0.2 * max(0, -(-len(handles) // ncols) - 2))
        picture.legend(
            handles.values(), handles, loc="outside lower center", ncols=ncols,
            frameon=False, fontsize=9, labelcolor=QUIET,
        )  # fmt: skip


def to_svg(picture: Figure) -> str:
    """Return the SVG element without XML prologue and fixed size, in the colours of the page."""
    import matplotlib
    from matplotlib.text import Text

    picture.patch.set_alpha(0)
    for axes in picture.axes:
        axes.patch.set_alpha(0)
    for text in picture.findobj(Text):  # names of the user, in which "$" begins no formula
        text.set_parse_math(False)

    file = io.StringIO()
    with (
        matplotlib.rc_context({"svg.hashsalt": "clusterformer", "svg.fonttype": "none"}),
        missing_glyphs_as_boxes(),  # the browser has them
    ):
        picture.savefig(file, format="svg", metadata={"Date": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    for color, variable in ((INK, "--ink"), (QUIET, "--quiet"), (FAINT, "--faint")):
        svg = re.sub(f"(?i): ?{color}", f": var({variable})", svg)
    return re.sub(r'(<svg[^>]*?) height="[^"]*"( [^>]*?)? width="[^"]*"', r"\1\2", svg, count=1)
