"""Plots of time and memory against the length of the sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterformer.plots.style import INK, QUIET, figure, line_style, plain_axes, save_png

Points = Sequence[tuple[float, float]]


def scaling(panels: Mapping[str, Mapping[str, Points]], path: str | Path, *, title: str) -> None:
    """Draw one log-log panel for each quantity, one line for each mechanism.

    Args:
        panels: Title of the panel, with its unit, to mechanism to points (length, value).
        path: The PNG to write.
        title: Title above all panels.
    """
    from matplotlib.ticker import (
        FixedFormatter,
        FixedLocator,
        LogLocator,
        NullFormatter,
        ScalarFormatter,
    )

    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    picture = figure(max(7.5, 4.6 * len(panels)), 4.6)
    picture.suptitle(title, fontsize=11, fontweight="bold", color=INK, x=0.02, ha="left")
    grid = picture.subplots(1, max(1, len(panels)), squeeze=False)[0]
    handles = {}
    for axes, (panel_title, lines) in zip(grid, panels.items(), strict=True):
        plain_axes(axes, panel_title, "tokens per sequence")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        for name, points in lines.items():
            x, y = zip(*sorted(points), strict=True)
            (handles[name],) = axes.plot(
                x, y, linewidth=1.6, markersize=4, **line_style(names.index(name))
            )
        lengths = sorted({x for points in lines.values() for x, _ in points})
        axes.xaxis.set_major_locator(FixedLocator(lengths))
        axes.xaxis.set_major_formatter(FixedFormatter([_short(x) for x in lengths]))
        axes.xaxis.set_minor_formatter(NullFormatter())
    picture.legend(
        handles.values(), handles, loc="outside lower center", ncols=min(3, len(handles)),
        frameon=False, fontsize=8, labelcolor=QUIET, handlelength=3,
    )  # fmt: skip
    save_png(picture, path)


def _short(length: float) -> str:
    return f"{length / 1024:g}k" if length >= 1024 and length % 1024 == 0 else f"{length:g}"
