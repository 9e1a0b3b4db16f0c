"""Pictures of clusters of points: centers as images, a map of the points, and sizes.

N points   C clusters   F features
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clusterformer.plots.colors import distinct_colors
from clusterformer.plots.style import INK, PALETTE, QUIET, figure, plain_axes, save_png

_MAX_TILES = 300
_NOISE = 0.8, 0.8, 0.8  # red, green and blue


def centroid_images(
    centers: NDArray, shape: tuple[int, int], path: str | Path, *, title: str = ""
) -> None:
    """Draw the centers of clusters as images in a grid, each in its own grey scale.

    Args:
        centers: Centers, (C, F); the first 300 are drawn.
        shape: Height and width of an image; their product is F.
        path: The PNG to write.
        title: Title above the grid.
    """
    shown = centers[:_MAX_TILES]
    low, high = shown.min(1, keepdims=True), shown.max(1, keepdims=True)
    tiles = ((shown - low) / np.maximum(high - low, 1e-12)).reshape(-1, *shape)
    columns = int(np.ceil(np.sqrt(1.6 * len(tiles))))
    rows = -(-len(tiles) // columns)
    height, width = shape[0] + 2, shape[1] + 2
    board = np.zeros((rows * height, columns * width))
    for number, tile in enumerate(tiles):
        top, left = number // columns * height + 1, number % columns * width + 1
        board[top : top + shape[0], left : left + shape[1]] = tile
    picture = figure(6.4, 6.4 * board.shape[0] / board.shape[1] + 0.4)
    axes = picture.subplots()
    axes.imshow(board, cmap="gray", interpolation="nearest")
    axes.set_axis_off()
    axes.set_title(title, fontsize=10, fontweight="bold", color=INK, loc="left")
    save_png(picture, path)


def point_maps(
    points: NDArray, clusters: Mapping[str, NDArray], path: str | Path, *, title: str = ""
) -> None:
    """Draw points once for each clustering, coloured by cluster.

    Each cluster has its own colour, noise a pale grey. With at most 50 clusters, each of 20 points
    or more has its number at its middle.

    Args:
        points: Positions on the plane, (N, 2).
        clusters: Name of a method to the cluster of each point, (N,); -1 is noise.
        path: The PNG to write.
        title: Title above all.
    """
    from matplotlib.patheffects import withStroke

    columns = min(3, len(clusters))
    rows = -(-len(clusters) // columns)
    picture = figure(4.0 * columns, 3.9 * rows + 0.4)
    if title:
        picture.suptitle(title, fontsize=11, fontweight="bold", color=INK, x=0.02, ha="left")
    most = max(1 + int(labels.max()) for labels in clusters.values())
    colors = np.concatenate([distinct_colors(max(1, most)), [_NOISE]])  # the last is that of -1
    size = float(np.clip(9000 / len(points), 3, 20))
    grid = list(picture.subplots(rows, columns, squeeze=False).flat)
    for axes in grid[len(clusters) :]:
        axes.set_visible(False)
    for axes, (name, labels) in zip(grid, clusters.items(), strict=False):
        axes.scatter(*points.T, c=colors[labels], s=size, linewidths=0, alpha=0.8)
        found, counts = np.unique(labels, return_counts=True)
        for cluster in found[(counts >= 20) & (found >= 0)] if len(found) <= 50 else ():
            middle = np.median(points[labels == cluster], 0)
            number = axes.annotate(str(cluster), middle, fontsize=8, color=INK, ha="center")
            number.set_path_effects([withStroke(linewidth=2, foreground="white")])
        axes.set_title(name, fontsize=10, fontweight="bold", color=INK, loc="left")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    save_png(picture, path)


def cluster_size_curves(sizes: Mapping[str, NDArray], path: str | Path, *, title: str = "") -> None:
    """Draw the sizes of clusters relative to the mean size, sorted, one line for each method.

    Args:
        sizes: Name of a method to the number of points in each cluster, (C,).
        path: The PNG to write.
        title: Title above.
    """
    from matplotlib.ticker import MaxNLocator

    picture = figure(5.5, 3.4)
    axes = picture.subplots()
    plain_axes(axes, title, "clusters, the largest first")
    for number, (name, counts) in enumerate(sizes.items()):
        ordered = np.sort(counts)[::-1]
        axes.plot(
            np.arange(1, len(ordered) + 1),
            ordered / max(1, ordered.sum()) * len(ordered),
            color=PALETTE[number % len(PALETTE)],
            linewidth=1.8,
            label=name,
        )
    axes.axhline(1, color=QUIET, linewidth=0.8, linestyle=":")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("size / mean size", fontsize=9, color=QUIET)
    axes.legend(frameon=False, fontsize=8, labelcolor=QUIET)
    save_png(picture, path)
