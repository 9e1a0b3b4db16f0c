"""Weights & Biases: its real client against a server on this machine."""

import csv
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from wandb_server import ENTITY, KEY, Logged, Wandb, serving

from clusterformer.cli.main import main
from clusterformer.compare.configs import flatten
from clusterformer.compare.results import read_results
from clusterformer.compare.wandb_runs import fetch_results

wandb = pytest.importorskip("wandb")
PROJECT = f"{ENTITY}/clusterformer"
TINY = {
    "title": "a grid",
    "config": "partner.yaml",
    "metric": "test/accuracy",
    "options": {
        "data.num_tokens": 16,
        "data.batch_size": 2,
        "data.epoch_steps": 2,
        "data.valid_texts": 2,
        "data.test_texts": 2,
        "model.d_model": 8,
        "model.d_ff": 8,
        "model.decoder_attention": None,
        "model.attention": "NeuralClusteringAttention",
        "model.attention.num_clusters": 2,
        "trainer.max_steps": 4,
        "trainer.enable_progress_bar": False,
    },
    "rows": {
        "coupled": {"model.attention.coupling": True},
        "not coupled": {"model.attention.coupling": False},
    },
}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wandb]:
    """A server that the client, here and in processes of our own, takes for W&B."""
    for name in os.environ:
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    with serving() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("HOME", str(tmp_path))  # whose .netrc may hold a key
        for place in ("WANDB_DIR", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
            monkeypatch.setenv(place, str(tmp_path))
        wandb.teardown()  # it reads the environment once
        yield server
        wandb.teardown()


def logged(name: str, accuracies: list[float], **model: object) -> Logged:
    """A finished run, as `fit --wandb` leaves it."""
    outcome = {
        "results": {"test/accuracy": accuracies[-1], "test/loss": math.nan},
        "monitor": "val/accuracy",
        "mode": "max",
        "steps": 20,
        "epochs": 2,
        "seconds_a_step": 0.5,
        "parameters": 1000,
        "peak_mib": 100.0,
    }
    attention = {
        "class_path": "clusterformer.attention.NeuralClusteringAttention",
        "init_args": {"num_clusters": 2},
    }
    data = {"class_path": "clusterformer.tasks.Classification", "init_args": {"name": "mr"}}
    config = {
        "seed_everything": 3,
        "model": {"attention": attention, **model},
        "model.dropout": "as a sweep adds it",
        "data": data,
    }
    history = [
        {"_step": at, "trainer/global_step": 10 * at, "val/accuracy": str(value)}
        if math.isnan(value)
        else {"_step": at, "trainer/global_step": 10 * at, "val/accuracy": value}
        for at, value in enumerate(accuracies)
    ]
    return Logged(
        name,
        "clusterformer",
        group="tiny",
        state="finished",
        config=json.dumps({key: {"value": value} for key, value in config.items()}),
        summary=json.dumps({"outcome": json.dumps(outcome)}),
        history=[json.dumps(line) for line in history],
    )


def keep(server: Wandb, *runs: Logged) -> None:
    server.runs |= {run.name: run for run in runs}


@pytest.mark.slow
def test_a_group_comes_back_with_rows_measures_and_curves(server: Wandb, capfd) -> None:
    again = logged("b", [0.25, 0.5, 0.75], dropout=0.1)
    # killed after the second validation and gone on from the first
    again.history[2:] = ['{"_step": 2, "trainer/global_step": 10, "val/accuracy": 0.625}']
    going = logged("c", [0.5], dropout=0.2)
    going.state, going.summary = "running", '{"val/accuracy": 0.5}'
    other = logged("d", [0.5], dropout=0.2)
    other.group = "other"
    table = Logged("e", "clusterformer", group="tiny", job="comparison")
    keep(server, logged("a", [math.nan, 0.5, 0.501], dropout=0), again, going, other, table)
    first, second = fetch_results(PROJECT, "tiny")
    assert first.row == "NeuralClusteringAttention, dropout=0"
    assert second.row == "NeuralClusteringAttention, dropout=0.1"
    assert (first.column, first.seed, first.seconds_an_epoch) == ("mr", 3, 5.0)
    assert first.measures["test/accuracy"] == 0.501
    assert math.isnan(first.curve[0][1])
    assert first.curve[1:] == [(10, 0.5), (20, 0.501)]
    assert first.epochs_to_converge == 1.1  # batch 10, the eleventh of 10 an epoch
    assert second.curve == [(0, 0.25), (10, 0.625)]
    assert main(["compare", "--from-wandb", PROJECT, "--group", "tiny"]) == 0
    assert "dropout=0.1" in capfd.readouterr().out
    assert "dropout=0.1" in Path("comparisons/tiny/runs.csv").read_text()
    assert Path("comparisons/tiny/index.html").exists()


@pytest.mark.parametrize(
    ("project", "group", "key", "printed"),
    [
        (PROJECT, "none", KEY, "has no finished run in group 'none'"),
        (f"{ENTITY}/nothing", "tiny", KEY, "is out of reach: Could not find project nothing"),
        (PROJECT, "tiny", "f" * 40, "Failed to verify credentials"),
        (PROJECT, "tiny", None, "No API key configured"),
        (PROJECT, "tiny", KEY, "no history found"),
    ],
    ids=["no group", "no project", "wrong key", "no key", "no history"],
)  # fmt: skip
def test_what_is_amiss_is_told_in_one_line(
    server: Wandb,
    project: str,
    group: str,
    key: str | None,
    printed: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd,
) -> None:
    keep(server, logged("a", [0.5]))
    server.silent.add("SampledHistoryPage")
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    else:
        monkeypatch.delenv("WANDB_API_KEY")
    assert main(["compare", "--from-wandb", project, "--group", group]) == 2
    captured = capfd.readouterr()
    (line,) = (line for line in captured.err.splitlines() if line.startswith("clusterformer:"))
    assert printed in line
    assert not list(Path().glob("comparisons"))


@pytest.mark.slow
def test_a_server_out_of_reach_is_told_in_one_line(
    server: Wandb, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # where nothing listens
    assert main(["compare", "--from-wandb", PROJECT, "--group", "tiny"]) == 2
    assert f"error: W&B project {PROJECT} is out of reach" in capfd.readouterr().err


def clusterformer(*arguments: str) -> None:
    """In a process of its own: what wandb writes is whole when that has ended."""
    subprocess.run([sys.executable, "-m", "clusterformer", *arguments], check=True)


@pytest.fixture
def plan(server: Wandb, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY, sort_keys=False))
    return path


def same_as_in_folders(folders: list[Path]) -> None:
    """Assert that W&B gives the group what the run folders hold."""
    here = read_results([str(folder) for folder in folders], pytest.fail)
    there = fetch_results(PROJECT, "tiny")
    known = ("row", "column", "seed", "measures", "monitor", "mode", "seconds_an_epoch")
    known += ("epochs", "parameters", "peak_mib", "curve", "epochs_to_converge")
    for ours, theirs in zip(here, there, strict=True):
        assert {key: getattr(ours, key) for key in known} == {
            key: getattr(theirs, key) for key in known
        }
        assert ours.config.items() <= theirs.config.items()
        assert len(ours.curve) == 2


@pytest.mark.slow
def test_what_is_logged_online_comes_back(server: Wandb, plan: Path) -> None:
    clusterformer("compare", str(plan), "--wandb")
    *runs, table = server.runs.values()
    assert [run.state for run in (*runs, table)] == ["finished"] * 3
    same_as_in_folders(
        [Path(f"comparisons/tiny/{row}/all/seed-0/partner/1") for row in ("coupled", "not-coupled")]
    )
    assert [run.shown for run in runs] == [f"{row}, seed 0" for row in TINY["rows"]]
    pictures = {path.split("/")[-1].split("_")[0] for path in server.files if ".png" in path}
    assert pictures == {"curves", "clusters-layer1", "clusters-layer2"}
    assert server.artifacts == [f"run-{table.name}-comparison", "tiny-comparison"]
    (rows,) = (json.loads(file) for path, file in server.files.items() if ".table.json" in path)
    assert [row[0] for row in rows["data"]] == ["coupled", "not coupled"]


@pytest.mark.slow
def test_further_tests_of_a_model_come_back_in_its_row(
    server: Wandb, plan: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    longer = {"data.num_tokens": 32, "data.batch_size": 1, "model.attention.alpha": 8.0}
    options = {**TINY["options"], "data.num_pairs": 16}
    columns = {"16": {}, "32": {"trained_on": "16", **longer}}
    plan.write_text(
        yaml.safe_dump({**TINY, "options": options, "columns": columns}, sort_keys=False)
    )
    clusterformer("compare", str(plan), "--wandb")
    assert [run.job for run in server.runs.values()].count("test") == 2
    of = {"coupled": "coupling=True", "not coupled": "coupling=False"}
    with Path("comparisons/tiny/runs.csv").open() as file:
        here = {(of[it["row"]], it["column"]): it["test/accuracy"] for it in csv.DictReader(file)}
    there = fetch_results(PROJECT, "tiny")
    assert len(there) == len(here) == 4
    for found in there:
        row = found.row.removeprefix("NeuralClusteringAttention, ")
        column = found.column.removeprefix("Partner, num_tokens=")
        assert found.measures["test/accuracy"] == float(here[row, column])
        trained_on = found.trained_on and found.trained_on.removeprefix("Partner, num_tokens=")
        assert trained_on == (None if column == "16" else "16")
        assert found.config["data.num_tokens"] == int(column)
    # made again, a test is the same run
    clusterformer("compare", str(plan), "--wandb")
    tested = next(Path().glob("comparisons/tiny/coupled/32/*/test.json"))
    tested.unlink()
    clusterformer("compare", str(plan), "--wandb")
    assert [run.job for run in server.runs.values()].count("test") == 2
    assert main(["compare", "--from-wandb", PROJECT, "--group", "tiny", "--out", "fetched"]) == 0
    assert "num_tokens=32" in capfd.readouterr().out


@pytest.mark.slow
def test_an_agent_trains_the_grid_of_a_sweep(
    server: Wandb, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = Path(sys.executable).parent
    if not (scripts / "clusterformer").exists():
        pytest.skip("clusterformer is not installed beside this Python")
    monkeypatch.setenv("PATH", f"{scripts}{os.pathsep}{os.environ['PATH']}")
    content = {**TINY, "grid": {"model.lr": [1e-5]}}
    plan.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main(["compare", str(plan), "--sweep", "sweep.yaml"]) == 0
    client = [sys.executable, "-m", "wandb"]
    subprocess.run([*client, "sweep", "--entity", ENTITY, "sweep.yaml"], check=True)
    ((name, sweep),) = server.sweeps.items()
    assert sweep["metric"] == {"name": "test/accuracy", "goal": "maximize"}
    subprocess.run([*client, "agent", f"{PROJECT}/{name}"], check=True)
    runs = [Path(f"runs/partner/{number}") for number in (1, 2)]
    configs = [flatten(yaml.safe_load((run / "config.yaml").read_text())) for run in runs]
    options = {**TINY["options"], "model.lr": 1e-5}
    assert [config["model.attention.coupling"] for config in configs] == [True, False]
    assert all(options.items() <= config.items() for config in configs)
    # resumed, each goes on as the sweep's run
    ids = [json.loads((run / "environment.json").read_text())["wandb_id"] for run in runs]
    assert ids == list(server.runs)
    assert {run.sweep for run in server.runs.values()} == {name}
    same_as_in_folders(runs)


@pytest.mark.slow
def test_a_run_whose_key_is_wrong_says_so(
    server: Wandb, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "f" * 40)
    assert main(["fit", "--pictures=false", "--config=partner.yaml", "--wandb"]) == 2
    assert "401" in capfd.readouterr().err
