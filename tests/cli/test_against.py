"""`fit --against`: other models trained likewise, in a table with the task's baselines."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from clusterformer.cli.against import Outcome, _likewise, _verdict
from clusterformer.cli.main import main
from clusterformer.cli.options import Options

TOYS = str(Path(__file__).parents[1] / "toy")
sys.path.append(TOYS)
TOY = [
    "fit",
    "--pictures=false",
    "--data=toy_task.Toy",
    "--data.size=16",
    "--model.d_model=8",
    "--model.num_heads=2",
]
TOY += ["--model.num_layers=1", "--trainer.accelerator=cpu", "--trainer.max_epochs=1"]
NAMES = ("neural clustering", "full attention", "half as wide")
OTHERS = {
    "full attention": {"attention": {"class_path": "clusterformer.attention.FullAttention"}},
    "half as wide": {"d_model": 4, "clustering_weight": 1e-5},
}


def table(output: str) -> dict[str, float]:
    """Names and results of the last lines."""
    table, _ = output.rsplit("\n\n", 2)[1:]
    header, *rows = table.splitlines()
    assert header.split() == ["test/accuracy", "keys", "seen", "seconds"]
    cells = [row.rsplit(maxsplit=3) for row in rows]
    for name, _, seen, _ in cells:
        assert {"full attention": "1", "always with": "-"}.get(name.strip(), seen) == seen
    return {name.strip(): float(result) for name, result, _, _ in cells}


def result_of(run: Path) -> float:
    with (run / "metrics.csv").open() as file:
        [result] = [row["test/accuracy"] for row in csv.DictReader(file) if row["test/accuracy"]]
    return float(result)


def test_the_last_lines_set_a_run_beside_others_and_baselines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clusters = "--model.attention.num_clusters=2"  # no option of full attention
    against = f"--against={json.dumps(OTHERS)}"
    assert main([*TOY, clusters, against, f"--runs={tmp_path}"]) == 0
    run = tmp_path / "toy" / "1"
    full, half = (run / "against" / name / "1" for name in ("full-attention", "half-as-wide"))
    printed = capsys.readouterr().out
    assert "limit_test_batches" not in printed
    found = table(printed)
    *_, last = printed.splitlines()
    shown = [found[name] for name in ("this run", *OTHERS)]
    words = [f"{name} {value:.2f}" for name, value in zip(NAMES, shown, strict=True)]
    assert last.startswith(f"{', '.join(words)}, after the same ")
    assert list(found) == ["this run", *OTHERS, "always with"]
    assert found["always with"] == 0.4
    for name, folder in zip(found, (run, full, half), strict=False):
        assert found[name] == pytest.approx(result_of(folder), abs=1e-4)
    models = [yaml.safe_load((x / "config.yaml").read_text())["model"] for x in (run, full, half)]
    assert models[1]["attention"]["class_path"].endswith(".FullAttention")
    assert models[2] == {**models[0], **OTHERS["half as wide"]}


def test_the_steps_of_one_that_was_stopped_early_are_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    against = f"--against={json.dumps({'asleep': {'lr': 1e-12}})}"
    patient = ["--trainer.max_epochs=4", "--monitor=val/loss", "--patience=1"]
    assert main([*TOY, *patient, "--model.lr=1e-4", against, f"--runs={tmp_path}"]) == 0
    run = tmp_path / "toy" / "1"
    first, other = (
        json.loads((folder / "results.json").read_text())["steps"]
        for folder in (run, run / "against" / "asleep" / "1")
    )
    assert other < first
    *_, last = capsys.readouterr().out.splitlines()
    assert f", after {first}, {other} steps" in last


def test_the_last_line_says_who_only_guesses_and_what_a_token_sees() -> None:
    options = Options(["--data=Partner", "--data.num_values=10", *TOY[4:]], fitting=True)
    first = Outcome(None, {"test/keys_seen": 0.25}, 400, 1.0)
    rows = [("this run", 0.92, 1.0), ("full attention", 0.12, 1.0), ("half as wide", 0.14, 1.0)]
    assert _verdict(options, first, rows, [400, 400, 400]) == (
        "neural clustering 0.92, full attention 0.12 (guessing), half as wide 0.14, "
        "after the same 400 steps; a token sees 25 % of its text"
    )


@pytest.mark.parametrize("limit", ["1", "0.5"])
def test_a_test_in_part_is_told_from_that_of_the_baselines(
    limit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limited = f"--trainer.limit_test_batches={limit}"
    assert main([*TOY, "--trainer.max_steps=1", limited, f"--runs={tmp_path}"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("the simple methods are tested on all examples")


def test_another_mechanism_has_the_options_given_to_it_and_else_its_defaults() -> None:
    given = "--model.attention.local_window=5"
    options = Options([*TOY[2:], given], fitting=True)
    routing = {"class_path": "RoutingAttention", "init_args": {"num_clusters": 3}}
    model = _likewise(options, {"attention": routing}).resolved()["model"]
    found = model["attention"]["init_args"]
    assert found["num_clusters"] == 3
    assert found["local_window"] == 5  # given to the first model, and an option of both
    assert found["local_heads"] is None  # 0 in neural clustering


def test_options_without_a_class_are_for_the_mechanism_of_the_run() -> None:
    given = ["--model.attention=RoutingAttention", "--model.attention.local_heads=1"]
    options = Options([*TOY[2:], *given], fitting=True)
    other = {"attention": {"init_args": {"num_clusters": 3}}}
    found = _likewise(options, other).resolved()["model"]["attention"]
    assert found["class_path"].endswith(".RoutingAttention")
    assert (found["init_args"]["num_clusters"], found["init_args"]["local_heads"]) == (3, 1)


WRONG = {
    "no class": ({"attention": {"class_path": "FulAttention"}}, "did you mean FullAttention?"),
    "no option": ({"widht": 4}, "model: no option 'widht'"),
    "no option of it": (
        {"attention": {"class_path": "FullAttention", "init_args": {"clusters": 2}}},
        "FullAttention has no option 'clusters'",
    ),
    "no such type": ({"lr": "fast"}, "model.lr: expected float, got 'fast'"),
}


@pytest.mark.parametrize(("model", "printed"), WRONG.values(), ids=WRONG)
def test_a_bad_one_is_known_before_training(
    model: dict[str, object], printed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    against = f"--against={json.dumps({**OTHERS, 'this one': model})}"
    assert main([*TOY, against, f"--runs={tmp_path}"]) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1
    assert error[0].startswith("clusterformer: error: against, this one: ")
    assert printed in error[0]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_to_be_checked_changes_nothing(tmp_path: Path) -> None:
    assert main([*TOY, f"--against={json.dumps(OTHERS)}", f"--runs={tmp_path}"]) == 0
    assert main([*TOY, f"--runs={tmp_path}"]) == 0
    checked, alone = (tmp_path / "toy" / number for number in "12")
    assert result_of(checked) == result_of(alone)
    weights = [
        torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        for run in (checked, alone)
    ]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


@pytest.mark.slow
def test_a_run_that_was_stopped_among_the_others_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`kill -9` once the first of two others has a checkpoint; then twice `--resume`."""
    command = [sys.executable, "-m", "clusterformer", *TOY, f"--runs={tmp_path}"]
    command += ["--trainer.max_epochs=40", f"--against={json.dumps(OTHERS)}"]
    run = tmp_path / "toy" / "1"
    full = run / "against" / "full-attention"
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": TOYS}, stdout=subprocess.DEVNULL
    ) as training:
        while not (full / "1" / "checkpoints" / "last.ckpt").exists():
            assert training.poll() is None, "it ended before it could be killed"
            time.sleep(0.01)
        training.kill()
    killed = torch.load(full / "1" / "checkpoints" / "last.ckpt", weights_only=True)["global_step"]
    resume = ["fit", f"--resume={run}", "--pictures=false", "--trust=toy_task"]
    assert main(resume) == 0
    first = capsys.readouterr().out
    assert f"{run}: finished, nothing is left to train" in first
    found = table(first)
    assert list(found) == ["this run", *OTHERS, "always with"]
    assert [path.name for path in full.iterdir()] == ["1"]
    last = torch.load(full / "1" / "checkpoints" / "last.ckpt", weights_only=True)["global_step"]
    assert last > killed
    assert found["full attention"] == pytest.approx(result_of(full / "1"), abs=1e-4)
    assert main(resume) == 0
    assert table(capsys.readouterr().out) == found


@pytest.mark.slow
def test_two_processes_train_the_others_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "clusterformer", *TOY, f"--runs={tmp_path}"]
    command += ["--trainer.strategy=ddp", "--trainer.devices=2"]
    done = subprocess.run(
        [*command, f"--against={json.dumps(OTHERS)}"],
        env={**os.environ, "PYTHONPATH": TOYS},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the same with") == 2
    assert list(table(done.stdout)) == ["this run", *OTHERS, "always with"]


@pytest.mark.slow
def test_each_is_a_run_of_its_own_on_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    assert main([*TOY, "--wandb", f"--against={json.dumps(OTHERS)}", f"--runs={tmp_path}"]) == 0
    logs = {path.relative_to(tmp_path).parts[:-3] for path in tmp_path.rglob("*.wandb")}
    run = ("toy", "1")
    assert logs == {
        run,
        (*run, "against", "full-attention", "1"),
        (*run, "against", "half-as-wide", "1"),
    }
