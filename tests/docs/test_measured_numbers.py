"""Numbers of result pages are those of the files that the pages name."""

import csv
import json
import re
from pathlib import Path
from statistics import fmean, stdev

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def test_many_topics_shows_means_over_all_seeds() -> None:
    runs = json.loads((RESULTS / "clustering-books.json").read_text(encoding="utf-8"))["runs"]
    page = (RESULTS / "clustering.md").read_text(encoding="utf-8")
    section = page.partition("\n## Many topics")[2].partition("\n## ")[0]
    lines = [line.replace("*", "") for line in section.splitlines() if line.startswith("| ")]
    for line, run, method in zip(
        lines[1:], [0, 1, 0, 1], ["kmeans-10", "neural", "neural", "umap-hdbscan"], strict=True
    ):
        rows = [row for row in runs[run]["rows"] if row["method"] == method]
        assert len(rows) == 5
        ari, nmi, accuracy, seconds = (
            fmean(row[name] for row in rows) for name in ("ari", "nmi", "accuracy", "cpu_seconds")
        )
        cells = [cell.split()[0] for cell in line.split("|")[2:-1]]
        assert cells == [f"{ari:.3f}", f"{nmi:.3f}", f"{100 * accuracy:.1f}", f"{seconds:.0f}"]


def test_20_newsgroups_shows_the_accuracies_of_its_runs() -> None:
    seed_2 = "table-2-20news-seed-2"
    folders = {
        ("full attention", "Transformer"): ["table-2-20news-full-newer-split", seed_2],
        ("neural clustering", "ClusterFormer"): [
            "table-2-20news-newer-split",
            "table-2-20news-newer-split-seed-1",
            seed_2,
        ],
        ("*control:* clusters that stay random", "frozen random clusters"): [
            "table-2-20news-controls",
            "table-2-20news-newer-split-seed-1",
            "table-2-20news-random-seed-2",
        ],
        ("the paper's form", "the paper's form"): [
            "table-2-20news-paper-form",
            "table-2-20news-paper-form-seed-1",
            "table-2-20news-paper-form-seed-2",
        ],
    }
    page = (RESULTS / "20news.md").read_text(encoding="utf-8")
    section = page.partition("\n## To convergence")[2].partition("\n†")[0]
    table = {line.split(" | ")[0][2:]: line for line in section.splitlines() if "| " in line}
    readme = (RESULTS.parents[1] / "README.md").read_text(encoding="utf-8")
    for (shown, row), names in folders.items():
        found = {
            int(run["seed"]): 100 * float(run["test/accuracy"])
            for name in names
            for run in _runs(name)
            if run["row"] == row
        }
        values = [found[seed] for seed in (0, 1, 2)]
        cells = [cell.strip(" *†").split(" ")[0] for cell in table[shown].split("|")[2:6]]
        assert cells == [f"{value:.1f}" for value in (*values, fmean(values))]
        if row in ("Transformer", "ClusterFormer"):
            assert f"| {fmean(values):.1f} ± {stdev(values):.1f} |" in readme


def test_mnist_by_information_has_one_number_on_every_page() -> None:
    runs = json.loads((RESULTS / "clustering-information.json").read_text(encoding="utf-8"))["runs"]
    (run,) = (
        run
        for run in runs
        if run["environment"]["commit"].startswith("f68d2ad")
        and "--data mnist" in run["environment"]["command"]
    )
    shares = [100 * row["accuracy"] for row in run["rows"] if row["method"] == "neural-hidden"]
    assert len(shares) == 10
    shown = f"{fmean(shares):.1f} ± {stdev(shares):.1f}"
    for page in (RESULTS / "mnist.md", RESULTS / "index.md", RESULTS.parents[1] / "README.md"):
        text = page.read_text(encoding="utf-8").replace("*", "")
        assert set(re.findall(r"95\.8 ± \d\.\d", text)) == {shown}


def _runs(folder: str) -> list[dict[str, str]]:
    with (RESULTS / folder / "runs.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
