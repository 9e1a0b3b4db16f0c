"""`clusterformer compare` itself: each run once, whatever happens in between."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml
from filelock import FileLock
from forked import Process

from clusterformer.cli.main import main
from clusterformer.cli.options import make_model_and_task
from clusterformer.compare import child, runner
from clusterformer.compare.jobs import Job
from clusterformer.compare.plan import read_plan
from clusterformer.compare.planned_run import PlannedRun
from clusterformer.compare.runner import Failure, explain, lock_page

SLOW = pytest.mark.slow
TINY = {
    "config": "partner.yaml",
    "options": {
        "data.num_tokens": 16,
        "data.batch_size": 2,
        "data.epoch_steps": 2,
        "data.valid_texts": 2,
        "data.test_texts": 2,
        "model.d_model": 8,
        "model.d_ff": 8,
        "model.attention.num_clusters": 2,
        "trainer.max_steps": 4,
        "trainer.enable_progress_bar": False,
    },
    "rows": {"coupled": {}, "not coupled": {"model.attention.coupling": False}},
    "seeds": [0],
}


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY, sort_keys=False))
    return path


def starts(folder: Path) -> dict[str, int]:
    """How often each run began or went on."""
    return {
        str(path.relative_to(folder)): len(list(path.glob("environment*.json")))
        for path in folder.glob("*/*/*/*/*")
        if (path / "config.yaml").exists()
    }


def test_a_directory_may_have_the_name_of_a_shipped_comparison(tmp_path: Path, capfd) -> None:
    (tmp_path / "quickstart").mkdir()
    assert main(["compare", "quickstart", "--dry-run"]) == 0
    assert "to train" in capfd.readouterr().out


def test_a_part_of_a_comparison(tmp_path: Path, capfd) -> None:
    path = tmp_path / "part.yaml"
    columns = {"short": {"data.num_tokens": 8}, "long": {"data.num_tokens": 16}}
    path.write_text(yaml.safe_dump({**TINY, "columns": columns, "seeds": [5, 3, 8]}))
    part = ["--rows", "not coupled", "--columns", "long", "--seeds", "2"]
    assert main(["compare", str(path), *part, "--dry-run"]) == 0
    listed = capfd.readouterr().out.splitlines()
    assert [line.split("parameters")[-1].strip() for line in listed[:-1]] == [
        "not coupled on long: seeds 5, 3",
    ]
    assert main(["compare", str(path), "--rows", "coupled", "neither"]) == 2
    assert "no row 'neither'; there is coupled, not coupled" in capfd.readouterr().err
    assert main(["compare", str(path), "--seeds", "4"]) == 2
    assert "no 4 seeds; there are 5, 3, 8" in capfd.readouterr().err


def test_a_class_stands_before_its_options(tmp_path: Path) -> None:
    path = tmp_path / "reformer.yaml"
    row = {"model.attention.num_hashes": 4, "model.attention": "ReformerAttention"}
    path.write_text(yaml.safe_dump({"config": "mr.yaml", "rows": {"run": row}}, sort_keys=False))
    arguments = read_plan(path).runs[0].arguments()
    make_model_and_task(arguments)
    assert arguments[:2] == ["--config", "mr.yaml"]


def test_a_pretrained_run_that_is_not_there_is_told_at_the_start(plan: Path, capsys) -> None:
    Path("here").mkdir()
    rows = {"from one": "here", "from none": "pretrained/mlm/1"}
    starts = {row: {"model.init_from": start} for row, start in rows.items()}
    plan.write_text(yaml.safe_dump({**TINY, "rows": starts}))
    assert main(["compare", str(plan), "--dry-run"]) == 0
    told = capsys.readouterr().err
    assert "from none: model.init_from: no pretrained/mlm/1 here; these runs will fail" in told
    assert "from one" not in told


def test_a_network_that_cannot_be_built_is_named_when_runs_are_listed(plan: Path, capfd) -> None:
    rows = {"fine": {}, "broken": {"model.num_heads": 3}}
    plan.write_text(yaml.safe_dump({**TINY, "rows": rows}, sort_keys=False))
    assert main(["compare", str(plan), "--dry-run"]) == 2
    captured = capfd.readouterr()
    assert "parameters  fine, seed 0" in captured.out
    assert "error: broken, seed 0: num_heads must divide d_model" in captured.err


@pytest.mark.usefixtures("forked")
def test_a_table_and_a_page_and_nothing_trained_twice(plan: Path, capfd) -> None:
    assert main(["compare", str(plan), "--dry-run"]) == 0
    assert re.match(r"to do +[\d,]+ parameters  coupled, seed 0\n", capfd.readouterr().out)
    assert main(["compare", str(plan)]) == 0
    printed = capfd.readouterr().out
    assert "[2/2] not coupled, seed 0: test/accuracy" in printed
    folder = Path("comparisons/tiny")
    assert {path.name for path in folder.glob("[!.]*.*")} == {
        "runs.csv", "table.md", "table.tex", "index.html"
    }  # fmt: skip
    assert "not coupled" in (folder / "index.html").read_text()
    begun = starts(folder)
    assert list(begun.values()) == [1, 1]
    turned = {**TINY, "options": dict(reversed(TINY["options"].items()))}
    plan.write_text(yaml.safe_dump(turned, sort_keys=False))  # their order decides nothing
    assert main(["compare", str(plan), "--dry-run"]) == 0
    assert "2 of 2 are finished" in capfd.readouterr().out
    assert main(["compare", str(plan)]) == 0
    assert starts(folder) == begun
    runs = [str(folder / run) for run in begun]
    assert main(["compare", *runs, "--out", "again"]) == 0
    assert "coupling=False" in capfd.readouterr().out
    changed = {**TINY, "options": {**TINY["options"], "model.lr": 0.5}}
    plan.write_text(yaml.safe_dump(changed, sort_keys=False))
    assert main(["compare", str(plan)]) == 2
    assert "holds a run of other arguments" in capfd.readouterr().err


@pytest.mark.usefixtures("forked")
@pytest.mark.slow
@pytest.mark.parametrize("damaged", ["config.yaml", "results.json"])
def test_a_damaged_cell_is_trained_anew_and_says_so(damaged: str, plan: Path, capfd) -> None:
    plan.write_text(yaml.safe_dump({**TINY, "rows": {"coupled": {}}}, sort_keys=False))
    assert main(["compare", str(plan)]) == 0
    folder = Path("comparisons/tiny")
    [run] = starts(folder)
    (folder / run / damaged).write_text("" if damaged == "config.yaml" else "{")
    capfd.readouterr()
    assert main(["compare", str(plan)]) == 0
    printed = [line for line in capfd.readouterr().out.splitlines() if "set aside" in line]
    assert len(printed) == 1
    assert str(Path(run) / damaged) in printed[0]
    assert "trained anew" in printed[0]
    [aside] = (folder / run).parent.glob("*.damaged-*")
    assert (aside / "metrics.csv").exists()
    assert len((folder / "runs.csv").read_text().splitlines()) == 2


def test_a_reason_is_given_once_for_all_runs_that_it_stopped() -> None:
    runs = [PlannedRun(row, "", 0, {}, ()) for row in ("a", "b", "c")]
    failures = [Failure(run, "no file" if run.row != "b" else "killed") for run in runs]
    assert explain(failures) == "a, seed 0, c, seed 0: no file; b, seed 0: killed"


@pytest.mark.slow
def test_a_failed_run_is_named_and_the_rest_goes_on(plan: Path, capfd) -> None:
    rows = {"broken": {"model.attention.num_clusters": 0}, "fine": {}}
    plan.write_text(yaml.safe_dump({**TINY, "rows": rows}, sort_keys=False))
    assert main(["compare", str(plan), "--jobs", "2"]) == 2
    captured = capfd.readouterr()
    assert "1 of 2 runs failed: broken, seed 0: num_clusters must be at least 1" in captured.err
    table = Path("comparisons/tiny/table.md").read_text()
    assert "fine" in table
    assert "- not finished, and not in the table: broken, seed 0" in table


@pytest.mark.usefixtures("forked")
def test_a_killed_training_is_told_by_its_signal_and_not_by_its_last_step(plan: Path) -> None:
    longer = {**TINY, "options": {**TINY["options"], "trainer.max_steps": 4_000}}
    plan.write_text(yaml.safe_dump({**longer, "rows": {"coupled": {}}}, sort_keys=False))
    (job,) = [Job(Path("out"), planned) for planned in read_plan(plan).runs]
    job.record()
    told: list[str] = []
    options = {"num_parallel": 1, "wandb": False, "group": "", "report": told.append}
    killer = threading.Thread(target=kill_once_begun, args=(job,))
    killer.start()
    [(_, reason)] = runner.train_jobs([job], **options)
    killer.join()
    assert reason == (
        "killed by signal 9, by hand or by the system, which does so when memory runs out; "
        "the same command resumes it"
    )
    assert told[0] == f"1 run to train; the output of the first: {job.log}"
    assert f"FAILED: {reason}" in told[1]


def kill_once_begun(job: Job) -> None:
    while not (job.run and job.run.last.exists()):
        time.sleep(0.1)
    for process in multiprocessing.active_children():
        process.kill()


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_shards_share_the_runs_and_the_page(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("comparisons/tiny")
    assert main(["compare", str(plan), "--shard", "2/2"]) == 0
    assert [run.split("/")[0] for run in starts(folder)] == ["not-coupled"]
    command = ["compare", str(plan), "--shard", "1/2"]
    monkeypatch.setattr(sys, "argv", ["clusterformer", *command])
    assert main(command) == 0
    page = (folder / "index.html").read_text()
    assert f"<code>clusterformer compare {plan}</code>" in page  # which makes it all anew
    assert len((folder / "runs.csv").read_text().splitlines()) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_the_last_of_two_shards_that_end_at_once_writes_the_runs_of_both(plan: Path) -> None:
    folder = Path("comparisons/tiny")
    command = [sys.executable, "-m", "clusterformer", "compare", str(plan), "--shard"]
    with lock_page(folder):  # as a third one would, which read what it found long ago
        shards = [Process([*command, f"{number}/2"]) for number in (1, 2)]
        for _ in range(600):
            if len(list(folder.glob("*/*/*/*/*/results.json"))) == 2:
                break
            time.sleep(0.1)
        time.sleep(1)
        assert not (folder / "runs.csv").exists()
    assert [shard.wait() for shard in shards] == [0, 0]
    assert len((folder / "runs.csv").read_text().splitlines()) == 3
    assert "not finished" not in (folder / "table.md").read_text()


def begin(plan: Path) -> tuple[Process, Path]:
    """Start a comparison; return it, and the directory of its first run, once that has begun."""
    longer = {**TINY, "options": {**TINY["options"], "trainer.max_steps": 40}}
    plan.write_text(yaml.safe_dump(longer, sort_keys=False))
    process = Process([sys.executable, "-m", "clusterformer", "compare", str(plan)])
    first = Path("comparisons/tiny/coupled/all/seed-0")
    for _ in range(600):
        if list(first.glob("*/*/checkpoints/last.ckpt")):
            break
        time.sleep(0.1)
    return process, first


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_killed_in_the_middle_it_finishes_with_each_run_once(plan: Path) -> None:
    process, first = begin(plan)
    os.kill(process.pid, signal.SIGKILL)  # compare alone, not the training below it
    process.wait()
    assert not list(first.glob("*/*/results.json"))
    assert main(["compare", str(plan)]) == 0
    begun = starts(Path("comparisons/tiny"))
    assert sorted(begun.values()) == [1, 2]
    (results,) = first.glob("*/*/results.json")
    assert json.loads(results.read_text())["steps"] == 40


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    "sent",
    [signal.SIGKILL, *(pytest.param(s, marks=SLOW) for s in (signal.SIGTERM, signal.SIGINT))],
)
def test_the_training_ends_with_compare(sent: signal.Signals, plan: Path) -> None:
    process, first = begin(plan)
    os.kill(process.pid, sent)
    process.wait()
    lock = FileLock(first / "training.lock", timeout=child.GRACE_SECONDS / 2)
    with lock:  # open as soon as no training holds it
        pass
    assert not list(first.glob("*/*/results.json"))
    assert "go on with: clusterformer fit --resume" in (first / "log.txt").read_text()


@pytest.mark.usefixtures("forked")
def test_a_second_compare_is_refused_in_one_line(plan: Path, capfd) -> None:
    process, _ = begin(plan)
    assert main(["compare", str(plan)]) == 2
    assert main(["compare", str(plan), "--shard", "1/2"]) == 0
    captured = capfd.readouterr()
    assert "comparisons/tiny: another compare is training it" in captured.err
    assert captured.err.count("\n") == 1
    assert "coupled, seed 0: another compare trains it" in captured.out
    os.kill(process.pid, signal.SIGINT)
    process.wait()
    assert list(starts(Path("comparisons/tiny")).values()) == [1]


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        ([], "name a file of a comparison, or run directories"),
        (["nowhere.yaml"], "no comparison 'nowhere.yaml'"),
        (["{plan}", "--shard", "3/2"], "--shard is I/N with I from 1 to N, got 3/2"),
        (["{plan}", "--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["{plan}", "--fast"], "no option --fast; --help lists all"),
        (["--from-wandb", "a/b"], "--from-wandb needs --group"),
        (["tests", "."], "does not exist"),
        (["{plan}", "."], "tiny.yaml: a file of a comparison; give one such file, or only runs"),
        (["quickstart", "table-2"], "quickstart: a file of a comparison; give one such file"),
        (["tests", ".", "--rows", "a", "--dry-run"], "--rows, --dry-run: for one file of a"),
        (["tests", ".", "--jobs", "2"], "--jobs: for one file of a comparison, not for runs"),
        (["--from-wandb", "a/b", "--group", "c", "--wandb"], "--wandb: for one file of a"),
        (["{plan}", "--from-wandb", "a/b", "--group", "c"], "--from-wandb takes no files or runs"),
        (["{plan}", "--group", "c"], "--group needs --from-wandb ENTITY/PROJECT"),
        (["--from-wandb", "a/b", "--group", "../c"], "--group ../c cannot name a directory in"),
        (["--from-wandb", "a/b", "--group", "/c"], "--group /c cannot name a directory in"),
        (["--from-wandb", "a/b", "--group", ".."], "--group .. cannot name a directory in"),
    ],
)
def test_bad_input_gets_one_line(arguments: list[str], printed: str, plan: Path, capfd) -> None:
    assert main(["compare", *(word.format(plan=plan) for word in arguments)]) == 2
    error = capfd.readouterr().err
    assert printed in error
    assert error.count("\n") == 1


def test_the_page_of_a_group_does_not_replace_that_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("comparisons/tiny/a/all/seed-0")
    run.mkdir(parents=True)
    (run / "planned.json").touch()
    assert main(["compare", "--from-wandb", "a/b", "--group", "tiny"]) == 2
    assert "comparisons/tiny: holds a comparison with its runs;" in capfd.readouterr().err


@pytest.mark.slow
def test_runs_table_and_page_join_one_group_on_wandb(
    plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    # in a process of its own: what wandb writes is whole when that has ended
    command = [sys.executable, "-m", "clusterformer", "compare", str(plan)]
    subprocess.run([*command, "--wandb", "--out=elsewhere"], check=True)
    logs = [path.read_bytes() for path in Path("elsewhere").rglob("run-*.wandb")]
    group = b"\x04tiny"  # a string of four letters, as protobuf writes it
    assert [group in log for log in logs] == [True] * 3
    assert sum(b"tiny-comparison" in log and b"index.html" in log for log in logs) == 1


def test_columns_without_their_data_set_are_left_out_and_named(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLUSTERFORMER_DATA", str(plan.parent))
    absent = {"QNLI": "qnli.yaml", "CoLA": "cola.yaml", "WikiText": "wikitext2.yaml"}
    columns = {name: {"config": config} for name, config in absent.items()}
    here = {"partners": {key: TINY[key] for key in ("config",)} | TINY["options"]}
    content = {"skip_absent": True, "rows": {"ours": {}}, "columns": columns | here}
    plan.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main(["compare", str(plan), "--dry-run"]) == 0
    told = capsys.readouterr()
    for name, config in absent.items():
        line = next(line for line in told.err.splitlines() if f"left out: column {name}:" in line)
        assert f"`clusterformer prepare {config.removesuffix('.yaml')}` brings it" in line
    assert "ours on partners, seed 0" in told.out
    assert "0 of 1 are finished; 1 run to train" in told.out

    plan.write_text(yaml.safe_dump({**content, "skip_absent": False}, sort_keys=False))
    assert main(["compare", str(plan), "--dry-run"]) == 0
    told = capsys.readouterr()
    assert [line.partition(": ")[0] for line in told.err.splitlines()] == [
        f"no data for {name}" for name in absent
    ]
    assert "0 of 4 are finished; 4 runs to train" in told.out

    content["columns"] = columns
    plan.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main(["compare", str(plan)]) == 2
    assert "no column has its data set here" in capsys.readouterr().err
