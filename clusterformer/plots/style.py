"""Colours, fonts and axes of all pictures; figures are made without pyplot's global state."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterformer.whole_files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# colours of Okabe and Ito, distinct with every kind of colour vision
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8C8C8C")
MARKERS = "os^Dv<>P"
INK, QUIET, FAINT, ALARM = "#1A1A1A", "#5F5F5F", "#DCDCDC", "#B00020"
FONTS = ("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei")


def figure(width: float, height: float) -> Figure:
    """Make an empty figure; width and height are in inches."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1, wspace=0.03, hspace=0.04)
    return Figure(figsize=(width, height), dpi=150, layout=layout, facecolor="white")


def small_panels(number: int) -> tuple[Figure, list[Axes]]:
    """Make a figure of small panels, three a row at most.

    Margins are fixed: a layout that measures every label takes seconds.
    """
    from matplotlib.figure import Figure

    columns = min(3, max(1, number))
    rows = max(1, -(-number // columns))
    width, height, left, right, top, bottom = 3.7, 2.7, 0.62, 0.18, 0.38, 0.5  # inches
    picture = Figure(figsize=(width * columns, height * rows), dpi=150, facecolor="white")
    margins = {
        "left": left / (width * columns),
        "right": 1 - right / (width * columns),
        "bottom": bottom / (height * rows),
        "top": 1 - top / (height * rows),
        "wspace": (left + right) / (width - left - right),
        "hspace": (bottom + top) / (height - bottom - top),
    }
    grid = list(picture.subplots(rows, columns, squeeze=False, gridspec_kw=margins).flat)
    for axes in grid[number:]:
        axes.remove()
    return picture, grid[:number]


def save_png(picture: Figure, path: str | Path) -> None:
    """Write a figure as a PNG, whole or not at all."""
    with replacing(Path(path)) as partial:
        picture.savefig(partial, format="png")


def plain_axes(axes: Axes, title: str, xlabel: str) -> None:
    """Reduce `axes` to title, tick labels and a faint horizontal grid."""
    axes.set_title(title, y=1, fontsize=10, fontweight="bold", color=INK, loc="left")
    axes.set_xlabel(xlabel, fontsize=9, color=QUIET)
    axes.tick_params(which="both", labelsize=8, colors=QUIET, length=0)
    axes.yaxis.set_offset_position("right")  # a factor such as 1e-5; the title is on the left
    axes.yaxis.get_offset_text().set(fontsize=8, color=QUIET)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)


def line_style(number: int) -> dict[str, Any]:
    """Return colour, marker and stroke of a line by its number from 0; each line has its own.

    Up to 8 lines have markers of their own too, which tell them apart in black and white.
    """
    turn, index = divmod(number, len(PALETTE))
    return {
        "color": PALETTE[index],
        "marker": MARKERS[(index + turn) % len(MARKERS)],
        "linestyle": "-" if turn == 0 else "--",
    }


def installed_fonts() -> list[str]:
    """List the installed fonts among FONTS; a glyph missing in one is taken from the next."""
    from matplotlib.font_manager import fontManager

    known = {font.name for font in fontManager.ttflist}
    return [name for name in FONTS if name in known]


@contextmanager
def missing_glyphs_as_boxes() -> Iterator[None]:
    """Suppress warnings about characters that no font has; they are drawn as boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield
