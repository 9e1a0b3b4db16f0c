"""Picture of a recording: its spectrogram, and below it the cluster of each frame.

N frames   F filters   M frames of the encoder   L layers
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from clusterformer.plots.colors import distinct_colors
from clusterformer.plots.style import (
    INK,
    QUIET,
    figure,
    installed_fonts,
    missing_glyphs_as_boxes,
    save_png,
)

MAX_SECONDS = 8.0  # of a recording that are drawn: more words would overlap
_WIDTH = 1.5  # inches a second
_STRIP = 0.28  # inches a layer


def spectrogram_clusters(
    energies: ArrayLike,
    clusters: Sequence[ArrayLike],
    path: str | Path,
    *,
    seconds: float,
    words: Sequence[tuple[str, float, float]] = (),
    labels: Sequence[str] = (),
    title: str = "",
) -> None:
    """Draw log-mel energies over time; one strip a layer has the colour of each frame's cluster.

    Of a long recording the first 8 seconds are drawn. Colours of different layers are independent;
    in each layer the cluster of most frames has the first colour.

    Args:
        energies: (N, F).
        clusters: Cluster of each frame of the encoder, (M,), for each of L layers.
        path: The PNG to write.
        seconds: Length of the recording.
        words: Words with their begin and end, seconds.
        labels: Name of each strip.
        title: First line of the picture.
    """
    shown = np.asarray(energies, dtype=np.float64).T
    width = max(3.5, _WIDTH * min(seconds, MAX_SECONDS)) + 0.8
    page = figure(width, 2.6 + _STRIP * len(clusters))
    heights = [2.0, *([_STRIP] * len(clusters))]
    grid = page.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    grid[0].imshow(shown, origin="lower", aspect="auto", cmap="Greys", extent=(0, seconds, 0, 1))
    grid[0].set_ylabel("mel filters", fontsize=8, color=QUIET)
    for word, begin, end in words:
        if begin < MAX_SECONDS:
            options = {"x": (begin + end) / 2, "y": 1.02, "ha": "center", "va": "bottom"}
            text = grid[0].text(s=word, fontsize=8, color=INK, clip_on=False, **options)
            text.set_parse_math(False)
            text.set_fontfamily(installed_fonts())
    for axes, assignment, label in zip(grid[1:], clusters, labels, strict=True):
        numbers = np.asarray(assignment, dtype=np.int64)
        found, inverse, counts = np.unique(numbers, return_inverse=True, return_counts=True)
        rank = np.argsort(np.argsort(-counts, kind="stable"), kind="stable")[inverse]
        colours = distinct_colors(len(found))[rank][None]  # (1, M, 3)
        axes.imshow(colours, aspect="auto", extent=(0, seconds, 0, 1), interpolation="nearest")
        axes.set_ylabel(label, fontsize=8, color=QUIET, rotation=0, ha="right", va="center")
    for axes in grid:
        axes.set_yticks([])
        axes.tick_params(labelsize=8, colors=QUIET, length=0)
        axes.spines[:].set_visible(False)
    grid[0].set_xlim(0, min(seconds, MAX_SECONDS))
    grid[-1].set_xlabel("seconds", fontsize=9, color=QUIET)
    page.suptitle(title, fontsize=10, fontweight="bold", color=INK, x=0.02, ha="left")
    with missing_glyphs_as_boxes():
        save_png(page, path)
