"""Picture of a confusion matrix.

L labels
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from clusterformer.plots.style import (
    INK,
    QUIET,
    figure,
    installed_fonts,
    missing_glyphs_as_boxes,
    save_png,
)


def confusion_map(
    counts: ArrayLike, labels: Sequence[str], path: str | Path, *, numbers: bool = True
) -> None:
    """Draw how often each label was predicted for each; darker cells hold more of their row.

    Args:
        counts: Number of examples by label (row) and predicted label (column), (L, L).
        labels: The L labels.
        path: The PNG to write.
        numbers: Write the count into each cell.
    """
    shown = np.asarray(counts, dtype=np.float64)
    shares = shown / shown.sum(1, keepdims=True).clip(min=1)
    size = max(3.0, min(12.0, 0.45 * len(labels) + 1.5))
    page = figure(size, size)
    axes = page.add_subplot()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="equal")
    names = [label if len(label) <= 20 else f"{label[:19]}…" for label in labels]
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(names)), names)
    for name in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        name.set_parse_math(False)
    axes.tick_params(labelsize=8, length=0, labelcolor=INK, labelfontfamily=installed_fonts())
    axes.set_xlabel("predicted", fontsize=9, color=QUIET)
    axes.set_ylabel("label", fontsize=9, color=QUIET)
    axes.spines[:].set_visible(False)
    if numbers:
        for (row, column), count in np.ndenumerate(shown):
            if count:
                ink = "white" if shares[row, column] > 0.5 else INK
                axes.text(
                    column, row, f"{count:.0f}", ha="center", va="center", fontsize=7, color=ink
                )
    with missing_glyphs_as_boxes():
        save_png(page, path)
