"""As many colours as clusters, and all of them differ to the eye."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.image import imread

from clusterformer.plots import point_maps
from clusterformer.plots.colors import distinct_colors, to_lab
from clusterformer.plots.style import PALETTE


def test_lab_of_known_colours() -> None:
    known = {(1, 1, 1): (100, 0, 0), (0, 0, 0): (0, 0, 0), (1, 0, 0): (53.2, 80.1, 67.2)}
    for rgb, lab in known.items():
        np.testing.assert_allclose(to_lab(np.array(rgb, dtype=float)), lab, atol=0.2)


@pytest.mark.parametrize(("count", "difference"), [(1, 0), (8, 26), (20, 26), (50, 25), (300, 11)])
def test_every_cluster_differs_from_every_other_and_from_white(
    count: int, difference: float
) -> None:
    seen = to_lab(distinct_colors(count))
    assert seen.shape == (count, 3)
    apart = np.linalg.norm(seen[:, None] - seen, axis=-1)
    assert count == 1 or apart[~np.eye(count, dtype=bool)].min() > difference
    assert np.linalg.norm(seen - [100, 0, 0], axis=1).min() > 25


def test_the_first_colours_are_those_of_all_pictures() -> None:
    hexes = ["#" + "".join(f"{round(255 * part):02X}" for part in c) for c in distinct_colors(8)]
    assert tuple(hexes) == PALETTE
    np.testing.assert_array_equal(distinct_colors(30)[:20], distinct_colors(20))


def test_a_map_of_thirty_clusters_has_thirty_colours(tmp_path: Path) -> None:
    clusters = np.arange(30)
    points = np.stack([clusters % 6, clusters // 6], 1).astype(float)
    point_maps(points, {"one": clusters}, tmp_path / "map.png")
    pixels = imread(tmp_path / "map.png")[..., :3].reshape(-1, 3)
    # a dot is drawn with opacity 0.8 on white
    drawn = 0.8 * distinct_colors(30) + 0.2
    nearest = np.abs(pixels[:, None] - drawn).max(-1).min(0)
    assert nearest.max() < 0.01


def test_noise_has_the_colour_of_no_cluster(tmp_path: Path) -> None:
    points = np.stack([np.arange(40.0), np.zeros(40)], 1)
    for labels in (np.full(40, -1), np.repeat([-1, 0], 20)):
        point_maps(points, {"one": labels}, tmp_path / "map.png")
        pixels = imread(tmp_path / "map.png")[..., :3].reshape(-1, 3)
        grey, blue = 0.8 * np.array([[0.8] * 3, distinct_colors(1)[0]]) + 0.2
        near = [(np.abs(pixels - color).max(-1) < 0.01).any() for color in (grey, blue)]
        assert near == [True, labels.max() == 0]
