"""Picture of one text coloured by cluster, in reading order and sorted into attention blocks.

N tokens
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clusterformer.plots.style import (
    ALARM,
    FAINT,
    INK,
    PALETTE,
    QUIET,
    figure,
    installed_fonts,
    missing_glyphs_as_boxes,
    save_png,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_TOKENS = 256  # more are not readable on one page
MAX_CHARACTERS = 24  # of a token
# sizes in points
WIDTH, MARGIN = 828.0, 30.0  # of the page
BOX, GAP, LINE = 14.0, 2.5, 18.0  # height of a token's box; gap between boxes; height of a line
PADDING = 6.0  # left and right of a token's text together
BORDER = 12.0  # between two blocks
ARC = 10.0  # depth of the arcs between partners

Cluster = NDArray[np.int64]


def token_clusters(
    tokens: Sequence[str],
    assignment: ArrayLike,
    path: str | Path,
    *,
    block: ArrayLike | None = None,
    links: Sequence[tuple[int, int]] | None = None,
    framed: bool = True,
    title: str = "",
) -> None:
    """Draw a text coloured by cluster, in reading order and again sorted into attention blocks.

    A bar above both shows the number of tokens in each cluster. Of a long text only the first 256
    tokens of each order are drawn, and the picture says so; the bar and the numbers count all.

    Args:
        tokens: The N real tokens of one text.
        assignment: Cluster of each token, (N,) integer.
        path: The PNG to write.
        block: Attention block of each token, (N,) integer; None: one block for each cluster.
        links: Pairs of positions that belong together. Pairs in one block are joined by an arc,
            and the share of pairs in one cluster is printed.
        framed: Frame pairs in different clusters in red.
        title: First line of the picture.

    Raises:
        ValueError: if tokens, assignment and block differ in length.
    """
    cluster = np.asarray(assignment, dtype=np.int64)
    blocks = cluster if block is None else np.asarray(block, dtype=np.int64)
    if not len(tokens) == len(cluster) == len(blocks):
        lengths = f"{len(tokens)}, {len(cluster)} and {len(blocks)}"
        raise ValueError(f"tokens, assignment and block must have one length, got {lengths}")
    links = links or ()
    shown = min(len(tokens), MAX_TOKENS)
    cut = f" (the first {shown} of {len(tokens):,} tokens)" if shown < len(tokens) else ""
    order = np.lexsort((np.arange(len(tokens)), cluster, blocks))[:shown]
    page = _Page([readable(token) for token in tokens], cluster, blocks, links, framed)

    with missing_glyphs_as_boxes():
        page.write(title or "Tokens by cluster", 13, bold=True)
        page.write(_figures(cluster, blocks, links, framed), 9, color=QUIET)
        page.occupancy()
        page.write(f"In reading order{cut}", 10, bold=True, above=14)
        page.flow(np.arange(shown))
        page.write(f"Sorted by cluster, cut into attention blocks{cut}", 10, bold=True, above=14)
        page.flow(order, grouped=True)
        page.save(path)


class _Page:
    """A page that is filled with boxes and texts from the top down, and grows as needed."""

    def __init__(
        self,
        names: list[str],
        cluster: Cluster,
        blocks: Cluster,
        links: Sequence[tuple[int, int]],
        framed: bool,
    ) -> None:
        from matplotlib.backends.backend_agg import RendererAgg
        from matplotlib.font_manager import FontProperties

        self.names, self.cluster, self.blocks = names, cluster, blocks
        self.links = links
        self.separated = {
            k for i, j in links if framed and cluster[i] != cluster[j] for k in (i, j)
        }
        self.fill = cluster_colours(cluster)
        self.font = FontProperties(family=installed_fonts(), size=8)
        self.ruler = RendererAgg(1, 1, dpi=72)  # at 72 dpi a pixel is a point
        self.picture = figure(WIDTH / 72, 1)
        self.picture.set_layout_engine("none")
        self.axes: Axes = self.picture.add_axes((0, 0, 1, 1))
        self.y = MARGIN

    def write(
        self, text: str, size: float, *, bold: bool = False, color: str = INK, above: float = 0
    ) -> None:
        """Write one line of text at the left margin."""
        self.y += above + size
        weight = "bold" if bold else "normal"
        self._text(MARGIN, self.y, text, size, color=color, weight=weight, va="baseline", ha="left")
        self.y += 0.6 * size

    def occupancy(self) -> None:
        """Draw a bar of all clusters from large to small, each as wide as its share of tokens."""
        clusters, counts = np.unique(self.cluster, return_counts=True)
        x, scale = MARGIN, (WIDTH - 2 * MARGIN) / max(1, len(self.cluster))
        for number, count in sorted(zip(clusters, counts, strict=True), key=lambda it: -it[1]):
            self._box(x, self.y, count * scale - 1, BOX, self.fill[number])
            label = f"{number}" if count * scale > 12 else ""
            label = f"cluster {number}: {count}" if count * scale > 90 else label
            self._text(x + (count * scale - 1) / 2, self.y + BOX / 2, label, 7)
            x += count * scale
        self.y += BOX

    def flow(self, order: NDArray[np.int64], *, grouped: bool = False) -> None:
        """Write tokens in this order; grouped, separate the blocks and label the clusters."""
        x, right, last = MARGIN, WIDTH - MARGIN, None
        positions: dict[int, tuple[float, float]] = {}
        for i in order.tolist():
            width = self._width(self.names[i]) + PADDING
            here = (self.blocks[i], self.cluster[i])
            label = f"{here[1]}" if grouped and here != last else ""
            lead = self._width(label) + 3 if label else 0
            new_block = grouped and last is not None and here[0] != last[0]
            if x > MARGIN and x + lead + width + (BORDER if new_block else 0) > right:
                x, self.y = MARGIN, self.y + LINE + (ARC if grouped and self.links else 0)
            elif new_block:
                self._line(x + BORDER / 2 - 1, self.y - 1, self.y + BOX + 1)
                x += BORDER
            if label:
                self._text(x + lead / 2 - 1, self.y + BOX / 2, label, 7, color=QUIET, weight="bold")
            x += lead
            edge = ALARM if i in self.separated else "none"
            self._box(x, self.y, width, BOX, self.fill[self.cluster[i]], edge)
            self._text(x + width / 2, self.y + BOX / 2, self.names[i], 8)
            positions[i] = (x + width / 2, self.y + BOX)
            x, last = x + width + GAP, here
        if grouped:
            self._arcs(positions)
        self.y += BOX

    def save(self, path: str | Path) -> None:
        height = self.y + MARGIN
        self.picture.set_size_inches(WIDTH / 72, height / 72)
        self.axes.set(xlim=(0, WIDTH), ylim=(height, 0))
        self.axes.axis("off")
        save_png(self.picture, path)

    def _arcs(self, positions: dict[int, tuple[float, float]]) -> None:
        from matplotlib.patches import Arc

        for i, j in self.links:
            if i not in positions or j not in positions:
                continue
            (x, y), (other, below) = positions[i], positions[j]
            if self.blocks[i] == self.blocks[j] and y == below:
                depth = min(2 * ARC, 6 + abs(other - x) / 8)
                arc = Arc(((x + other) / 2, y + 1), abs(other - x), depth, theta1=0, theta2=180)
                arc.set(color=QUIET, linewidth=0.7)
                self.axes.add_patch(arc)

    def _box(
        self, x: float, y: float, width: float, height: float, fill: str, edge: str = "none"
    ) -> None:
        from matplotlib.patches import FancyBboxPatch

        corner = min(2.5, max(width, 0.1) / 3)
        box = FancyBboxPatch((x, y), max(width, 0.1), height, f"round,pad=0,rounding_size={corner}")
        box.set(facecolor=fill, edgecolor=edge, linewidth=1.1)
        self.axes.add_patch(box)

    def _line(self, x: float, top: float, bottom: float) -> None:
        self.axes.plot([x, x], [top, bottom], color=FAINT, linewidth=1.2)

    def _text(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        *,
        color: str = INK,
        weight: str = "normal",
        va: str = "center_baseline",
        ha: str = "center",
    ) -> None:
        font = self.font.copy()
        font.set_size(size)
        font.set_weight(weight)
        self.axes.text(x, y, text, color=color, fontproperties=font, va=va, ha=ha, parse_math=False)

    def _width(self, text: str) -> float:
        return self.ruler.get_text_width_height_descent(text, self.font, ismath=False)[0]


def _figures(
    cluster: Cluster, blocks: Cluster, links: Sequence[tuple[int, int]], framed: bool
) -> str:
    used, attending = len(np.unique(cluster)), len(np.unique(blocks))
    parts = [f"{len(cluster):,} tokens", f"{used} clusters in use", f"{attending} blocks"]
    if links:
        together = sum(int(cluster[i] == cluster[j]) for i, j in links)
        share = together / len(links)
        parts.append(f"partners in one cluster: {together:,} of {len(links):,} ({share:.0%})")
        if framed and together < len(links):
            parts[-1] += ", the others framed in red"
    return "   ·   ".join(parts)


def cluster_colours(cluster: Cluster) -> dict[int, str]:
    """Choose a colour for each cluster; the largest clusters get the most distinct colours."""
    from matplotlib.colors import to_hex, to_rgb

    numbers, counts = np.unique(cluster, return_counts=True)
    fills = {}
    for rank, number in enumerate(numbers[np.argsort(-counts, kind="stable")].tolist()):
        strength = (0.60, 0.30, 0.85)[rank // 8 % 3]
        red, green, blue = (1 - strength * (1 - part) for part in to_rgb(PALETTE[rank % 8]))
        fills[number] = to_hex((red, green, blue))
    return fills


def readable(token: str) -> str:
    """Shorten a token, and replace spaces and control characters by visible signs."""
    signs = "".join(
        "␣" if character.isspace() else character
        for character in unicodedata.normalize("NFC", token)
    )
    shown = "".join(character if character.isprintable() else "·" for character in signs) or "∅"
    return shown if len(shown) <= MAX_CHARACTERS else shown[: MAX_CHARACTERS - 1] + "…"
