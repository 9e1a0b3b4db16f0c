"""Numbers of result pages are those of the files that the pages name."""

import json
from pathlib import Path
from statistics import fmean

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
