"""Pictures are written whatever the text holds, and leave matplotlib's global state alone."""

from pathlib import Path

import numpy as np
import pytest
import torch
from full_disk import limited_files
from PIL import Image

from clusterformer.plots import (
    AccuracyCurve,
    accuracy_curve,
    attention_map,
    confusion_map,
    learning_curves,
    spectrogram_clusters,
    token_clusters,
)
from clusterformer.plots.curves import _moving_average, _panel_and_curve
from clusterformer.plots.position_curve import position_curve
from clusterformer.plots.style import PALETTE, plain_axes, small_panels

pytest.importorskip("matplotlib")

TEXTS = {
    "one token": ["word"],
    "one cluster": ["a", "b", "c", "d"],
    "mathtext": ["$x_1$", "$", "$$", "snake_case", "^", "\\frac{", "%", "{}"],
    "scripts": ["日本語", "русский", "عربى", "ไทย", "é", "👍", "naïve"],
    "control": ["", " ", "\n", "\t", "\x00", "\u200b", "\ud800"],
    "very long": ["x" * 5000, "y"],
}


def is_png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 2000


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("tokens", TEXTS.values(), ids=TEXTS)
def test_any_text_is_drawn(tokens: list[str], tmp_path: Path) -> None:
    clusters = [0] * 4 if len(tokens) == 4 else list(range(len(tokens)))
    token_clusters(tokens, clusters, tmp_path / "a.png", title="cost: $5 or $7_x")
    assert is_png(tmp_path / "a.png")


def test_a_full_disk_keeps_the_earlier_picture(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    confusion_map(np.eye(3), ["a", "b", "c"], path)
    earlier = path.read_bytes()
    with limited_files(2000), pytest.raises(OSError, match=r"too large: .*a\.png"):
        confusion_map(np.eye(3), ["d", "e", "f"], path)
    assert path.read_bytes() == earlier
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.filterwarnings("error")
def test_labels_are_no_formulas(tmp_path: Path) -> None:
    confusion_map(np.eye(3), ["$\\foo$", "x_$1^$", "$5-$10"], tmp_path / "a.png")
    assert is_png(tmp_path / "a.png")


def test_a_long_text_is_cut_but_counted_whole(tmp_path: Path) -> None:
    tokens = [f"word{i}" for i in range(5000)]
    links = [(2 * i, 2 * i + 1) for i in range(2500)]
    cluster = torch.randint(100, (5000,))
    token_clusters(tokens, cluster, tmp_path / "a.png", block=cluster // 2, links=links)
    assert is_png(tmp_path / "a.png")


def test_lengths_must_agree(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got 2, 3 and 3"):
        token_clusters(["a", "b"], [0, 0, 1], tmp_path / "a.png")


def test_learning_curves_skip_empty_fields(tmp_path: Path) -> None:
    lines = ["epoch,step,train/loss,val/loss,val/accuracy,train/layer1/entropy,lr"]
    lines += [f"0,{step},{2 / (step + 1)},,,{0.9},0.1" for step in range(100)]
    lines += ["0,99,,0.5,0.8,,", "1,199,,nan,0.9,,"]
    (tmp_path / "metrics.csv").write_text("\n".join(lines), encoding="utf-8")
    learning_curves(tmp_path / "metrics.csv", tmp_path / "a.png")
    assert is_png(tmp_path / "a.png")


@pytest.mark.parametrize(
    ("column", "panel"),
    [
        ("val/accuracy", ("accuracy", "val")),
        ("val/layer1/entropy", ("clusters: entropy", "layer 1")),
        ("train/decoder/layer12/dead", ("clusters: decoder/dead", "train 12")),
    ],
)
def test_layers_of_a_stack_share_a_panel(column: str, panel: tuple[str, str]) -> None:
    assert _panel_and_curve(column) == panel


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_one_value_that_is_not_finite_does_not_end_the_average(value: float) -> None:
    y = np.ones(200)
    y[[3, 100]] = value
    assert (_moving_average(y) == 1).all()
    y[50:70] = value
    average = _moving_average(y)
    assert np.isnan(average[55:65]).all()
    assert (average[[*range(50), *range(75, 200)]] == 1).all()


def test_learning_curves_of_a_run_that_logged_nothing(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("epoch,step\n", encoding="utf-8")
    learning_curves(tmp_path / "metrics.csv", tmp_path / "a.png")
    assert (tmp_path / "a.png").exists()


@pytest.mark.parametrize("value", [2.5e-6, 8.1e11])
def test_a_factor_of_the_labels_is_not_drawn_over_the_title(value: float) -> None:
    from matplotlib.text import Text

    picture, [axes] = small_panels(1)
    plain_axes(axes, "word perplexity", "step")
    axes.plot([0, 1], [value, 2 * value])
    picture.draw_without_rendering()
    factor = axes.yaxis.get_offset_text()
    assert factor.get_text()
    texts = {text.get_text(): text for text in axes.findobj(Text)}
    title = texts["word perplexity"].get_window_extent()
    assert not title.overlaps(factor.get_window_extent())


def test_a_logarithmic_axis_has_no_small_ticks() -> None:
    picture, [axes] = small_panels(1)
    plain_axes(axes, "time", "tokens")
    axes.set_yscale("log")
    axes.plot([0, 1], [5, 20])
    picture.draw_without_rendering()
    ticks = axes.yaxis.get_minor_ticks()
    assert ticks
    assert {tick.tick1line.get_markersize() for tick in ticks} == {0}


def test_the_first_token_stands_before_the_second(tmp_path: Path) -> None:
    position_curve([(0, 1), (1, 2)], [1.0, 3.0], tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    line = (pixels == tuple(bytes.fromhex(PALETTE[0][1:]))).all(-1)
    assert np.ptp(np.nonzero(line)[1]) > 100  # columns


def test_accuracy_curve_takes_runs_of_different_lengths(tmp_path: Path) -> None:
    runs = [AccuracyCurve([1e5, 2e5, 3e5], [0.1, 0.5, 0.9]), AccuracyCurve([1e5, 2e5], [0.2, 0.4])]
    panels = {"N = 256": {"full": runs, "ours": runs[:1]}, "N = 1,024": {"ours": runs}}
    accuracy_curve(panels, tmp_path / "a.png", title="accuracy")
    assert is_png(tmp_path / "a.png")


def test_global_settings_stay(tmp_path: Path) -> None:
    import matplotlib as mpl

    before = mpl.rcParams.copy(), mpl.get_backend(auto_select=False)
    token_clusters(["a"], np.array([3]), tmp_path / "a.png")
    assert before == (mpl.rcParams.copy(), mpl.get_backend(auto_select=False))


@pytest.mark.filterwarnings("error")
def test_attention_between_texts_is_drawn_whatever_they_hold(tmp_path: Path) -> None:
    source, target = sum(TEXTS.values(), []), ["$x_1$", "日本語", "\x00"] * 30  # noqa: RUF017
    weights = torch.rand(len(target), len(source))
    clusters = torch.arange(len(source)) % 3
    attention_map(weights, source, target, tmp_path / "a.png", source_clusters=clusters, title="$")
    assert is_png(tmp_path / "a.png")


def test_attention_weights_must_fit_the_tokens(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"weights are \(2, 3\), tokens 3 and 2"):
        attention_map(np.ones((2, 3)), ["a", "b"], ["c", "d", "e"], tmp_path / "a.png")


def test_partners_are_framed_only_where_they_should_meet(tmp_path: Path) -> None:
    tokens, cluster, links = [str(i) for i in range(8)], [0, 1] * 4, [(0, 1), (2, 4)]
    sizes = []
    for framed in (True, False):
        path = tmp_path / f"{framed}.png"
        token_clusters(tokens, cluster, path, links=links, framed=framed)
        red = np.asarray(Image.open(path).convert("RGB")).astype(int) - (0xB0, 0x00, 0x20)
        sizes.append(int((abs(red).sum(-1) < 12).sum()))
    assert sizes[0] > 20
    assert sizes[1] == 0


def test_a_recording_is_drawn_with_and_without_clusters(tmp_path: Path) -> None:
    energies = np.random.default_rng(0).normal(size=(300, 40))
    clusters = [np.arange(150) // 30, np.arange(150) % 100]
    words = [("zero", 0.1, 0.5), ("$x_1$", 1.0, 1.4), ("late", 20.0, 21.0)]
    spectrogram_clusters(energies, [], tmp_path / "a.png", seconds=3.0)
    spectrogram_clusters(
        energies, clusters, tmp_path / "b.png", seconds=3.0, words=words, labels=["1", "2"]
    )
    assert is_png(tmp_path / "a.png")
    strip = np.asarray(Image.open(tmp_path / "b.png").convert("RGB"))
    assert len(np.unique(strip.reshape(-1, 3), axis=0)) > 100  # a colour for each cluster
