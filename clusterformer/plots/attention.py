"""Picture of the attention weights between two texts, with clusters marked.

N target tokens   M source tokens
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clusterformer.plots.style import (
    INK,
    figure,
    installed_fonts,
    missing_glyphs_as_boxes,
    save_png,
)
from clusterformer.plots.tokens import cluster_colours, readable

if TYPE_CHECKING:
    from matplotlib.text import Text

MAX_TOKENS = 60  # of each text; more are not readable
CELL = 0.19  # inches
LETTER = 0.095  # inches, in the title


def attention_map(
    weights: ArrayLike,
    source: Sequence[str],
    target: Sequence[str],
    path: str | Path,
    *,
    source_clusters: ArrayLike | None = None,
    target_clusters: ArrayLike | None = None,
    title: str = "",
) -> None:
    """Draw the attention weights of target tokens on source tokens; darker cells weigh more.

    Tokens of one cluster have the same colour; source and target have separate clusters. Of a long
    text only the first 60 tokens are drawn.

    Args:
        weights: Attention weights, (N, M); each row has the sum 1.
        source: The M real tokens.
        target: The N real tokens.
        path: The PNG to write.
        source_clusters: Cluster of each source token, (M,) integer; None leaves them uncoloured.
        target_clusters: Cluster of each target token, (N,) integer; None leaves them uncoloured.
        title: First line of the picture.

    Raises:
        ValueError: if the weights do not fit the tokens.
    """
    shown = np.asarray(weights, dtype=np.float64)
    if shown.shape != (len(target), len(source)):
        raise ValueError(f"weights are {shown.shape}, tokens {len(target)} and {len(source)}")
    shown = shown[:MAX_TOKENS, :MAX_TOKENS]
    rows, columns = shown.shape
    width = CELL * columns + 2.2
    page = figure(width, CELL * rows + 2.2)
    axes = page.add_subplot()
    axes.imshow(shown, cmap="Greys", vmin=0, vmax=1, aspect="equal")
    axes.set_xticks(range(columns), [readable(token) for token in source[:columns]], rotation=90)
    axes.set_yticks(range(rows), [readable(token) for token in target[:rows]])
    axes.xaxis.tick_top()
    axes.tick_params(labelsize=8, length=0, labelcolor=INK, labelfontfamily=installed_fonts())
    axes.spines[:].set_visible(False)
    _mark(axes.get_xticklabels(), source_clusters)
    _mark(axes.get_yticklabels(), target_clusters)
    lines = textwrap.fill(title, int(width / LETTER))
    page.suptitle(lines, fontsize=10, fontweight="bold", color=INK, x=0.02, ha="left")
    with missing_glyphs_as_boxes():
        save_png(page, path)


def _mark(labels: Sequence[Text], clusters: ArrayLike | None) -> None:
    for label in labels:
        label.set_parse_math(False)
    if clusters is None:
        return
    numbers: NDArray[np.int64] = np.asarray(clusters, dtype=np.int64)
    colours = cluster_colours(numbers)
    for label, number in zip(labels, numbers.tolist(), strict=False):
        label.set_bbox({"boxstyle": "round,pad=0.15", "fc": colours[number], "ec": "none"})
