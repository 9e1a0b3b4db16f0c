"""The page of clustered texts: one HTML file without external parts or scripts.

P texts   C clusters
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clusterformer.plots.colors import distinct_colors

_SIZE = 640  # of the map, in pixels
_ROW = 22  # height of a leaf of the tree, in pixels
_SHOWN = 300  # characters of an example

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1f; --paper: #fff; --quiet: #666; --line: #ddd }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6ea; --paper: #17171a; --quiet: #9a9aa2; --line: #3a3a40 } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1100px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
.note { color: var(--quiet) } svg { max-width: 100%; height: auto }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif }
.wide svg { max-width: none }
svg .outside { fill: none; pointer-events: all; stroke: var(--quiet); stroke-width: .8;
  stroke-opacity: .7 }
svg .name { font-weight: 600; paint-order: stroke; stroke: var(--paper); stroke-width: 3px }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .45rem .6rem;
  border-bottom: 1px solid var(--line) }
td.size { text-align: right; white-space: nowrap } td.words { min-width: 12rem }
.bar { height: .5rem; border-radius: 2px; margin-top: .25rem }
.mark { display: inline-block; width: .8rem; height: .8rem; border-radius: 50%;
  margin-right: .4rem }
blockquote { margin: 0 0 .5rem; color: var(--quiet); font-size: .9rem; overflow-wrap: anywhere }
"""


class Cluster(NamedTuple):
    """A row of the page.

    Attributes:
        name: Name of the cluster.
        size: Number of texts.
        words: Its words, the most typical first.
        examples: Typical texts.
    """

    name: str
    size: int
    words: Sequence[str]
    examples: Sequence[str]


def topic_page(
    clusters: Sequence[Cluster],
    plane: NDArray,
    labels: NDArray,
    linkage: NDArray,
    *,
    title: str,
    note: str,
    noise: int = 0,
) -> str:
    """Write the page: map, hierarchy, and a table with sizes, words and examples.

    Args:
        clusters: C clusters.
        plane: Texts on the map, (P, 2).
        labels: Cluster of each of them, (P,); -1 is noise.
        linkage: Hierarchy of the clusters, (C - 1, 4), as SciPy's.
        title: Title.
        note: How the page was made.
        noise: Number of texts without a cluster.
    """
    colors = [
        "#" + "".join(f"{round(255 * value):02x}" for value in color)
        for color in distinct_colors(max(1, len(clusters)))
    ]
    outside = f" {noise} texts are in no cluster (rings)." if noise else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="note">{escape(note)}</p>\n'
        f"<h2>Map</h2>\n<p class=note>{len(plane)} texts; near texts are alike.{outside}</p>\n"
        f"{_map(clusters, plane, labels, colors)}\n"
        + (f"<h2>Hierarchy</h2>\n{_tree(clusters, linkage, colors)}\n" if len(linkage) else "")
        + f"<h2>Clusters</h2>\n{_table(clusters, colors)}\n</body>\n</html>\n"
    )


def _map(
    clusters: Sequence[Cluster], plane: NDArray, labels: NDArray, colors: Sequence[str]
) -> str:
    low, high = plane.min(0), plane.max(0)
    spots = 12 + (plane - low) / np.maximum(high - low, 1e-12) * (_SIZE - 24)
    parts = [f'<svg viewBox="0 0 {_SIZE} {_SIZE}" width="{_SIZE}" role="img" aria-label="map">']
    for (x, y), cluster in zip(spots, labels.tolist(), strict=True):
        name, look = "no cluster", 'r="1.6" class="outside"'
        if cluster >= 0:
            name = f"{cluster}: {clusters[cluster].name}"
            look = f'r="2.6" fill="{colors[cluster]}" fill-opacity=".75"'
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" {look}><title>{escape(name)}</title></circle>'
        )
    for cluster in range(len(clusters)):
        if (labels == cluster).any():
            x, y = np.median(spots[labels == cluster], axis=0)
            parts.append(
                f'<text class="name" x="{x:.0f}" y="{y:.0f}" text-anchor="middle">{cluster}</text>'
            )
    return "".join(parts) + "</svg>"


def _tree(clusters: Sequence[Cluster], linkage: NDArray, colors: Sequence[str]) -> str:
    """Draw the hierarchy from left (all one) to right (the clusters)."""
    from scipy.cluster.hierarchy import dendrogram

    drawn: dict[str, Any] = dendrogram(linkage, no_plot=True)
    highest = max(float(linkage[-1, 2]), 1e-12)
    height, width = _ROW * len(clusters), 460

    def point(depth: float, leaf: float) -> str:  # dendrogram puts leaves at 5, 15, 25, ...
        return f"{10 + (1 - depth / highest) * (width - 20):.1f},{leaf / 10 * _ROW:.1f}"

    parts = [f'<svg viewBox="0 0 {width + 420} {height}" width="{width + 420}" role="img" '
             'aria-label="hierarchy">']  # fmt: skip
    for leaves, depths in zip(drawn["icoord"], drawn["dcoord"], strict=True):
        points = " ".join(point(depth, leaf) for leaf, depth in zip(leaves, depths, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="#888" stroke-width="1.5"/>')
    for row, cluster in enumerate(drawn["leaves"]):
        y = (row + 0.5) * _ROW
        label = f"{cluster}: {clusters[cluster].name} ({clusters[cluster].size})"
        parts.append(
            f'<circle cx="{width - 8}" cy="{y}" r="5" fill="{colors[cluster]}"/>'
            f'<text x="{width + 4}" y="{y + 4}">{escape(label)}</text>'
        )
    return f'<div class="wide">{"".join(parts)}</svg></div>'


def _table(clusters: Sequence[Cluster], colors: Sequence[str]) -> str:
    largest = max((cluster.size for cluster in clusters), default=1) or 1
    order = sorted(range(len(clusters)), key=lambda number: -clusters[number].size)
    rows = []
    for number in order:
        cluster = clusters[number]
        bar = f"width:{100 * cluster.size / largest:.0f}%;background:{colors[number]}"
        examples = "".join(f"<blockquote>{_short(text)}</blockquote>" for text in cluster.examples)
        rows.append(
            f'<tr><td><span class="mark" style="background:{colors[number]}"></span>{number}</td>'
            f'<td class="words"><b>{escape(cluster.name)}</b><br>'
            f"{escape(', '.join(cluster.words))}</td>"
            f'<td class="size">{cluster.size}<div class="bar" style="{bar}"></div></td>'
            f"<td>{examples}</td></tr>"
        )
    heads = "<tr><th></th><th>words</th><th>texts</th><th>examples</th></tr>"
    return (
        f'<div class="wide"><table><thead>{heads}</thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _short(text: str) -> str:
    text = " ".join(text.split())
    return escape(text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ...")
