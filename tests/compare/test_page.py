"""The page stands alone, says what the table says, and works in a browser."""

import math
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from toy_results import RESULTS, result

from clusterformer.compare.heat_maps import heat_maps
from clusterformer.compare.page import page
from clusterformer.compare.plots import along_a_key, validation_curves
from clusterformer.compare.statistics import summarise
from clusterformer.plots.style import line_style

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")


def made() -> str:
    return page(summarise(RESULTS, baseline="full"), "A <b>title</b> & more", "clusterformer x")


class Balanced(HTMLParser):
    """Checks that every element that opens closes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_it_needs_nothing_from_elsewhere() -> None:
    text = made()
    links = re.findall(r"(?:src|href)=[\"']?([^\"' >]+)", text)
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "@import" not in text
    assert "url(http" not in text


def test_it_is_well_formed_and_escapes_what_it_is_told() -> None:
    checker = Balanced()
    checker.feed(made())
    assert checker.open == []
    assert "<h1>A &lt;b&gt;title&lt;/b&gt; &amp; more</h1>" in made()
    assert "0.800 ± 0.100" in made()


@pytest.mark.filterwarnings("error")
def test_names_are_no_formulas_and_may_be_in_any_script() -> None:
    names = ["$5 and $10", "$^$", "模型"]
    runs = [
        result(name, column, 0, 0.5, peak_mib=100.0 + number)
        for number, name in enumerate(names)
        for column in names
    ]
    text = page(summarise(runs), "title", "clusterformer x")
    drawn = "".join(re.findall("<svg.*?</svg>", text, re.DOTALL))
    assert all(f">{name}<" in drawn for name in names)


def test_a_key_is_drawn_along_only_where_one_thing_takes_three_values_of_it() -> None:
    key = "model.attention.num_clusters"
    apart = [
        result("ours", column, 0, 0.5, config={"model.attention": "A", key: k})
        for k, column in enumerate("abc")
    ]
    assert along_a_key(summarise(apart)) == {}
    together = [
        result(f"k = {k}", "", 0, 0.5, config={"model.attention": "A", key: k}) for k in (5, 10, 20)
    ]
    assert list(along_a_key(summarise(together))) == [key]


def test_a_line_along_a_key_is_of_runs_that_differ_in_that_key_alone() -> None:
    clusters, width = "model.attention.num_clusters", "model.attention.min_width"
    runs = [
        result(f"k = {k}, {w}", "", seed, k / 100 if w == 1 else 0.9, config={
            "model.attention": "A", clusters: k, width: w, "seed_everything": seed})
        for k in (5, 10, 20) for w in (1, 64) for seed in (0, 1)
    ]  # fmt: skip
    (drawn,) = along_a_key(summarise(runs)).values()
    assert ">A, min_width=1<" in drawn
    assert ">A, min_width=64<" in drawn
    unlike = [replace(run, config={**run.config, "model.lr": run.config[clusters]}) for run in runs]
    assert along_a_key(summarise(unlike)) == {}


def test_what_follows_the_seed_has_no_line_along_it() -> None:
    folds = [
        result("A", "", fold, 0.5, config={
            "model.attention": "A", "data.fold": fold, "seed_everything": fold})
        for fold in range(5)
    ]  # fmt: skip
    assert along_a_key(summarise(folds)) == {}


def test_a_heat_map_needs_every_pair_of_one_option_of_the_model_and_one_of_the_data() -> None:
    clusters, length = "model.attention.num_clusters", "data.length"
    runs = [
        result(f"k = {k}", f"N = {n}", seed, seed + k / n, config={
            "model.attention": "A", clusters: k, length: n, "seed_everything": seed})
        for k in (5, 10) for n in (32, 64) for seed in (0, 1)
    ]  # fmt: skip
    drawn = heat_maps(summarise(runs))
    assert drawn is not None
    means = [f">{0.5 + k / n:.3g}<" for k in (5, 10) for n in (32, 64)]
    assert all(mean in drawn for mean in means)
    assert heat_maps(summarise(runs[:-2])) is None  # a pair is missing
    other = [replace(run, config={**run.config, "model.lr": run.config[length]}) for run in runs]
    assert heat_maps(summarise(other)) is None  # two options of the model differ


def test_a_run_that_diverged_leaves_the_others_their_colours() -> None:
    runs = [
        result(f"k = {k}", f"N = {n}", 0, value, config={
            "model.attention": "A", "model.attention.num_clusters": k, "data.length": n})
        for k, n, value in ((5, 32, math.nan), (5, 64, 0.1), (10, 32, 0.5), (10, 64, 0.9))
    ]  # fmt: skip
    drawn = heat_maps(summarise(runs))
    assert drawn is not None
    assert re.search("fill: #ffffff[^>]*>0.9<", drawn)  # on the darkest blue


def test_it_says_what_differs_only_where_it_differs_and_what_is_not_recorded() -> None:
    text = made()
    assert text.count("<code>model.attention=ours</code>") == 2  # a row in two columns
    assert text.count("<code>model.attention=full</code>") == 1  # the first run
    assert text.count("not recorded") == len(RESULTS)  # the machine


def test_drawings_take_the_colours_of_the_page() -> None:
    text = made()
    assert "prefers-color-scheme: dark" in text
    assert "fill: var(--ink)" in text
    assert "fill: #ffffff" not in text


def test_one_validation_makes_no_learning_curve() -> None:
    once = replace(result("ours", "", 0, 0.5), curve=[(10, 0.5)])
    assert validation_curves(summarise([once])) is None
    assert validation_curves(summarise([replace(once, curve=[(10, 0.4), (20, 0.5)])])) is not None


def test_learning_curves_say_what_they_measure_beside_the_name_of_the_data() -> None:
    drawn = validation_curves(summarise(RESULTS))
    assert drawn is not None
    assert all(f">{text}<" in drawn for text in ("MR", "CR", "val/accuracy", "steps"))


def test_rows_differ_in_black_and_white() -> None:
    looks = [line_style(number) for number in range(16)]
    assert len({look["marker"] for look in looks[:8]}) == 8
    assert len({tuple(look.values()) for look in looks}) == 16
    assert len({(look["color"], look["marker"]) for look in looks}) == 16  # points have no stroke


def test_a_screen_reader_finds_rows_and_what_a_drawing_shows() -> None:
    text = made()
    assert all(f'<th scope="row">{row}</th>' in text for row in ("full", "ours"))
    drawings = re.findall("<svg[^>]*>", text)
    assert drawings
    assert all('role="img" aria-label="' in drawing for drawing in drawings)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no headless Chromium here")
def test_a_browser_sorts_the_table_and_reports_no_error(tmp_path: Path) -> None:
    probe = """<script>
      const errors = []; window.onerror = message => errors.push(message);
      window.onload = () => {
        const first = () => document.querySelector("tbody tr th").textContent;
        const before = first();
        document.querySelectorAll("th button")[1].click();
        const wide = document.documentElement.scrollWidth > window.innerWidth;
        document.body.dataset.told = [before, first(), wide, ...errors].join("|");
      };
    </script>"""
    path = tmp_path / "index.html"
    path.write_text(made().replace("<body>", f"<body>{probe}"), encoding="utf-8")
    assert BROWSER is not None
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=500,900",
            f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri(),
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found = re.search(r'data-told="([^"]*)"', done.stdout)
    assert found, done.stderr[-500:]
    assert found[1] == "full|ours|false"
