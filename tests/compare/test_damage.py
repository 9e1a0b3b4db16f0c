"""Damaged files of runs are named, and the comparison is made of the rest."""

import json
import random
from pathlib import Path

import pytest
from full_disk import limited_files
from toy_runs import METRICS, OUTCOME, write_run

from clusterformer.cli.main import main
from clusterformer.compare.jobs import Job
from clusterformer.compare.planned_run import PlannedRun
from clusterformer.compare.results import read_results
from clusterformer.compare.statistics import summarise
from clusterformer.compare.tables import markdown, runs_csv, text
from clusterformer.compare.verdict import verdict
from clusterformer.errors import InputError


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.chdir(tmp_path)
    return [write_run(Path("runs/a") / str(number), lr=number) for number in (1, 2, 3)]


def test_the_page_of_other_runs_is_kept(runs: list[Path]) -> None:
    for number, folder in enumerate(("runs", "runs-2", "runs-3"), 1):
        assert main(["compare", *map(str, runs[:number])]) == 0
        assert (Path("comparisons") / folder / "table.md").exists()
    lines = [len(path.read_text().splitlines()) for path in sorted(Path().glob("c*/*/runs.csv"))]
    assert lines == [2, 3, 4]


def test_the_table_of_a_planned_comparison_is_kept(
    runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    planned = Path("comparisons/mine/full/MR/seed-0/planned.json")
    planned.parent.mkdir(parents=True)
    planned.write_text("{}")
    assert main(["compare", *map(str, runs), "--out", "comparisons/mine"]) == 2
    assert "comparisons/mine: holds a comparison with its runs" in capsys.readouterr().err
    assert not Path("comparisons/mine/table.md").exists()


def compare(runs: list[Path]) -> tuple[list[str], int]:
    """Make the tables of runs; return what is printed, and the number of runs in them."""
    lines: list[str] = []
    summary = summarise(read_results([*map(str, runs)], lines.append))
    assert text(summary)
    assert markdown(summary)
    assert verdict(summary)
    return [*lines, *summary.notes], len(runs_csv(summary).splitlines()) - 1


@pytest.mark.parametrize(
    ("name", "content", "printed"),
    [
        ("results.json", "", "left out: runs/a/2/results.json: not the results of a fit"),
        ("results.json", json.dumps(OUTCOME)[:60], "left out: runs/a/2/results.json"),
        ("results.json", "[" * 5000, "nested too deeply"),
        ("results.json", "null", "runs/a/2: no results.json; finish it"),
        (
            "results.json",
            json.dumps({**OUTCOME, "epochs": "2"}),
            "runs/a/2/results.json: refused, results.epochs",
        ),
        (
            "results.json",
            json.dumps({**OUTCOME, "monitor": None}),
            "runs/a/2/results.json: refused, results.monitor",
        ),
        ("results.json", json.dumps({**OUTCOME, "results": {"val/x": 1}}), "seed 0 has no 'test/"),
        ("config.yaml", "", "left out: runs/a/2/config.yaml: holds no options"),
        ("config.yaml", "model: [", "left out: runs/a/2/config.yaml:1: not valid YAML"),
        ("config.yaml", "seed_everything: x", "left out: runs/a/2/config.yaml: not the conf"),
        ("environment.json", "{", "runs/a/2/environment.json: not the environment of a run"),
        ("metrics.csv", METRICS[:-20] + "\n2x,1,1", "runs/a/2/metrics.csv:4: not a table"),
        ("metrics.csv", "step,val/accuracy\n\0,\0", "runs/a/2/metrics.csv"),
        ("metrics.csv", "val/accuracy\n0.5", "runs/a/2/metrics.csv:2: not a table"),
    ],
)
def test_it_is_named_and_the_rest_compared(
    name: str, content: str, printed: str, runs: list[Path]
) -> None:
    (runs[1] / name).write_text(content)
    lines, number = compare(runs)
    assert len(lines) == 1
    assert printed in lines[0]
    assert "\n" not in lines[0]
    assert number == (3 if name in ("metrics.csv", "environment.json") else 2)


def test_terminal_and_page_name_all_damage(runs: list[Path], capfd) -> None:
    (runs[0] / "metrics.csv").write_text(METRICS + "torn,")
    (runs[1] / "results.json").write_text("{")
    broken = json.dumps({**OUTCOME, "results": {"test/accuracy": float("nan")}})
    (runs[2] / "results.json").write_text(broken.replace("0.5", "Infinity"))
    assert main(["compare", *map(str, runs), "--out", "out"]) == 0
    assert len(capfd.readouterr().err.splitlines()) == 2
    page = Path("out/index.html").read_text()
    assert "runs/a/1/metrics.csv:6: not a table of measures" in page
    assert "nan" in Path("out/table.md").read_text()
    assert main(["compare", *map(str, runs), "--out", "."]) == 0
    assert f"<title>{Path.cwd().name}</title>" in Path("index.html").read_text()
    capfd.readouterr()
    for run in runs:
        (run / "results.json").write_text("")
    assert main(["compare", *map(str, runs), "--out", "out"]) == 2
    assert capfd.readouterr().err.splitlines()[-1].endswith("no finished run to compare")


@pytest.mark.parametrize(
    "count", [pytest.param(30, id="few"), pytest.param(300, id="many", marks=pytest.mark.slow)]
)
def test_mutated_runs_never_end_the_comparison(count: int, runs: list[Path]) -> None:
    draw = random.Random(14)
    parts = [b"", b"null", b"-1", b"1e999", b"NaN", b"\xff", b"\0", b"{", b"]", b'"', b",", b"\n"]
    names = ["results.json", "config.yaml", "metrics.csv", "environment.json"]
    whole = {name: (runs[1] / name).read_bytes() for name in names}
    named = 0
    for _ in range(count):
        for name, content in whole.items():
            (runs[1] / name).write_bytes(content)
        for _ in range(2):
            path = runs[1] / draw.choice(names)
            old = path.read_bytes()
            start = draw.randrange(len(old) + 1)
            path.write_bytes(old[:start] + draw.choice(parts) + old[start + draw.randrange(9) :])
        lines, number = compare(runs)
        assert number >= 2
        assert not any("\n" in line for line in lines)
        named += bool(lines)
    assert named > count // 3


@pytest.mark.parametrize("name", ["config.yaml", "results.json"])
def test_a_damaged_cell_is_set_aside_and_to_be_trained_again(name: str, tmp_path: Path) -> None:
    job = Job(tmp_path, PlannedRun("a", "", 0, {}, ()))
    job.record()
    run = write_run(job.folder / "partner" / "9")
    write_run(job.folder / "partner" / "10")
    assert job.finished
    assert job.result is not None
    torn = run.with_name("10")
    (torn / name).write_text("")
    assert not job.finished
    assert job.result is None
    assert str(torn) in str(job.damage)
    aside = job.set_aside()
    assert aside is not None
    assert (aside / "metrics.csv").read_text() == METRICS
    assert job.finished  # by the run before


def test_a_cell_of_a_configuration_that_was_edited_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text("model:\n  lr: 0.1\n  dropout: 0.2\n")
    job = Job(tmp_path, PlannedRun("a", "", 0, {}, (str(base),)))
    job.record()
    base.write_text("# the same\nmodel: {dropout: 0.2, lr: 0.1}\n")
    job.record()
    base.write_text("model:\n  lr: 0.2\n  dropout: 0.2\n")
    with pytest.raises(InputError, match=r"holds a run of .*base\.yaml as it was"):
        job.record()
    record = json.loads((job.folder / "planned.json").read_text())
    del record["configs"]  # as an older version wrote it
    (job.folder / "planned.json").write_text(json.dumps(record))
    job.record()


def test_a_cell_of_a_data_file_that_was_edited_is_refused(tmp_path: Path) -> None:
    data, base = tmp_path / "texts.csv", tmp_path / "base.yaml"
    base.write_text(f"data: {{class_path: Classification, init_args: {{train: {data}}}}}\n")
    data.write_text("text,label\n")
    options = {"data.train": str(data), "data.valid": "x" * 5000, "data.name": "mr"}
    jobs = [
        Job(tmp_path, PlannedRun("by an option", "", 0, options, ())),
        Job(tmp_path, PlannedRun("by a configuration", "", 0, {}, (str(base),))),
    ]
    for job in jobs:
        job.record()
        job.record()
    data.write_text("text,label\nfine,1\n")
    for job in jobs:
        with pytest.raises(InputError, match=r"holds a run of .*texts\.csv as it was"):
            job.record()


def test_a_log_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    job = Job(tmp_path, PlannedRun("a", "", 0, {}, ()))
    job.record()
    job.log.touch()
    with limited_files(0):
        assert job.last_message() == f"{job.log}: File too large"
    assert job.last_message() == "no output"


def test_a_cell_without_its_record_is_of_an_unknown_run(tmp_path: Path) -> None:
    job = Job(tmp_path, PlannedRun("a", "", 0, {}, ()))
    job.record()
    write_run(job.folder / "partner" / "1")
    (job.folder / "planned.json").write_text("")
    job.record()
    assert job.run is None
    job.record()
