"""Picture of a language model's loss by the position of a token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clusterformer.plots.style import PALETTE, QUIET, figure, plain_axes, save_png


def position_curve(
    borders: Sequence[tuple[int, int]], bits: Sequence[float], path: str | Path
) -> None:
    """Draw bits of a token against the number of tokens before it, on a logarithmic axis.

    Args:
        borders: First position of each part, and the position behind its last one.
        bits: Mean bits of a token of each part.
        path: The PNG to write.
    """
    page = figure(4.5, 3)
    axes = page.add_subplot()
    plain_axes(axes, "", "tokens before it")
    axes.set_xscale("symlog", base=2, linthresh=1)  # the first token has 0 before it
    middles = [(first + last - 1) / 2 for first, last in borders]
    axes.plot(middles, bits, color=PALETTE[0], marker="o", markersize=3)
    axes.set_ylabel("bits of a token", color=QUIET, fontsize=9)
    save_png(page, path)
