"""Learning curves of one run, and accuracy of several runs against the tokens seen."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clusterformer.plots.style import (
    INK,
    PALETTE,
    QUIET,
    figure,
    plain_axes,
    save_png,
    small_panels,
)

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

SHARES = "clusters: "
"""Beginning of the titles of panels in 0..1; their axis shows the whole range."""

LONG = 40
"""Number of points above which a curve is smoothed and has no markers."""

_GAP = 0.055  # least distance of labels beside the curves; the axis is 1 high


class AccuracyCurve(NamedTuple):
    """Accuracy during one training.

    Attributes:
        tokens: Tokens seen at each measurement, increasing.
        accuracy: Accuracy at each, in 0..1.
    """

    tokens: Sequence[float]
    accuracy: Sequence[float]


def learning_curves(metrics: str | Path, path: str | Path) -> None:
    """Draw every logged quantity against the training step, each in a small panel.

    A column `val/accuracy` is the curve "val" of the panel "accuracy"; the layers of a model
    share a panel. Results on the test data are left out. A long curve is drawn pale with its
    moving average over it.

    Args:
        metrics: `metrics.csv` as Lightning's CSVLogger writes it.
        path: The PNG to write.
    """
    found = _read(Path(metrics))
    names = sorted(found, key=lambda name: (name != "loss", name != "accuracy", name))
    picture, grid = small_panels(len(names))
    curves = [points for panel in found.values() for points in panel.values()]
    last = max((points[-1][0] for points in curves), default=1.0) or 1.0
    for axes, name in zip(grid, names, strict=True):
        plain_axes(axes, name.replace("_", " "), "step")
        axes.set_xlim(-0.03 * last, 1.03 * last)
        if name.startswith(SHARES):
            axes.set_ylim(-0.03, 1.03)
        for number, (curve, points) in enumerate(found[name].items()):
            color = {"train": PALETTE[0], "val": PALETTE[5]}.get(curve, PALETTE[number % 8])
            x, y = np.array(points).T
            if len(y) > LONG:
                axes.plot(x, y, color=color, alpha=0.25, linewidth=0.8)
                y = _moving_average(y)
            marker = "" if len(y) > LONG else "o"
            axes.plot(x, y, color=color, linewidth=1.6, marker=marker, markersize=3, label=curve)
        if len(found[name]) > 1:
            axes.legend(frameon=False, fontsize=8, labelcolor=QUIET)
    save_png(picture, path)


def accuracy_curve(
    panels: Mapping[str, Mapping[str, Sequence[AccuracyCurve]]],
    path: str | Path,
    *,
    title: str = "",
) -> None:
    """Draw accuracy against tokens seen: the mean of each method's runs, and a band over them.

    The band spans the lowest and the highest run. A method has the same colour in all panels.

    Args:
        panels: Title of a panel, such as "N = 256", to method to the curves of its runs.
        path: The PNG to write.
        title: Title above all panels.
    """
    from matplotlib.ticker import EngFormatter

    methods = list(dict.fromkeys(method for panel in panels.values() for method in panel))
    lines: dict[str, Line2D] = {}
    picture = figure(max(5.5, 3.8 * len(panels)), 3.8)
    if title:
        picture.suptitle(title, fontsize=12, fontweight="bold", color=INK, x=0.02, ha="left")
    grid = picture.subplots(1, max(1, len(panels)), squeeze=False, sharey=True)[0]
    for axes, (name, panel) in zip(grid, panels.items(), strict=False):
        plain_axes(axes, name, "training tokens seen")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_ylim(0, 1.03)
        axes.margins(x=0.02)
        ends: dict[str, float] = {}
        for method, runs in panel.items():
            color = PALETTE[methods.index(method) % len(PALETTE)]
            x = np.unique(np.concatenate([np.asarray(run.tokens, float) for run in runs]))
            x = x[x <= min(max(run.tokens) for run in runs)]
            y = np.stack([np.interp(x, run.tokens, run.accuracy) for run in runs])
            axes.fill_between(x, y.min(0), y.max(0), color=color, alpha=0.18, linewidth=0)
            (lines[method],) = axes.plot(x, y.mean(0), color=color, linewidth=1.8)
            ends[method] = float(y[:, -1].mean())
        for method, height in _apart(ends).items():
            anchor = {"xy": (1, height), "xycoords": ("axes fraction", "data")}
            shift = {"xytext": (3, 0), "textcoords": "offset points", "va": "center"}
            value = f"{ends[method]:.3f}"
            axes.annotate(value, **anchor, **shift, fontsize=8, color=lines[method].get_color())
    grid[0].set_ylabel("accuracy", color=QUIET, fontsize=9)
    picture.legend(
        list(lines.values()),
        list(lines),
        loc="outside lower center",
        ncols=len(lines) or 1,
        frameon=False,
        fontsize=9,
        labelcolor=INK,
    )
    save_png(picture, path)


def _read(metrics: Path) -> dict[str, dict[str, list[tuple[float, float]]]]:
    panels: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    with metrics.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for column, value in row.items():
                if value and "/" in column and not column.startswith("test/"):
                    panel, curve = _panel_and_curve(column)
                    panels[panel][curve].append((float(row["step"]), float(value)))
    return panels


def _panel_and_curve(column: str) -> tuple[str, str]:
    stage, _, name = column.partition("/")
    layer = re.search(r"layer(\d+)", name)
    if layer is None:
        return name, stage
    panel = re.sub(r"/?layer\d+", "", name).strip("/")
    return SHARES + panel, f"layer {layer[1]}" if stage == "val" else f"{stage} {layer[1]}"


def _apart(heights: dict[str, float]) -> dict[str, float]:
    """Move labels up, then back below 1, so that they are `_GAP` apart."""
    names = sorted(heights, key=heights.__getitem__)
    moved = dict(heights)
    for below, name in pairwise(names):
        moved[name] = max(moved[name], moved[below] + _GAP)
    ceiling = 1.0
    for name in reversed(names):
        moved[name] = min(moved[name], ceiling)
        ceiling = moved[name] - _GAP
    return moved


def _moving_average(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average over a centred window of about a twentieth of the curve, narrower at both ends.

    What is not finite, such as a gradient norm in fp16, does not count; NaN where nothing does.
    """
    half = max(1, len(y) // 40)
    known = np.isfinite(y)
    total, number = (
        np.concatenate([[0.0], np.cumsum(x)]) for x in (np.where(known, y, 0.0), known)
    )
    start = np.maximum(np.arange(len(y)) - half, 0)
    stop = np.minimum(np.arange(len(y)) + half + 1, len(y))
    number = number[stop] - number[start]
    return np.where(number > 0, (total[stop] - total[start]) / np.maximum(number, 1), np.nan)
