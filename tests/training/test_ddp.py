"""Two processes train as one does, given the same global batches."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterformer.cli.main import main

TOYS = str(Path(__file__).parents[1] / "toy")
sys.path.append(TOYS)
from together import train_together  # noqa: E402
from toy_command import TOY  # noqa: E402

# the last batch of an epoch has one example, so a second process gets none of it
COMMAND = ["fit", "--pictures=false", "--data=toy_task.Toy", "--data.size=33", "--model.dropout=0"]
COMMAND += ["--model.d_model=8", "--model.num_heads=2", "--model.num_layers=1", "--model.warmup=2"]
COMMAND += ["--trainer.max_epochs=2", "--trainer.log_every_n_steps=1", "--trainer.accelerator=cpu"]
TWO = ["--trainer.strategy=ddp", "--trainer.devices=2"]
LOSSES = ["--model.clustering_weight=0.1", "--model.sorting_weight=0.1"]
PAPER = ["--model.attention=NeuralClusteringAttention", "--model.attention.coupling=false"]
UNUSED = [*PAPER, "--model.clustering_weight=0"]


def logged(run: Path) -> list[dict[str, float]]:
    with (run / "metrics.csv").open() as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


@pytest.mark.slow
@pytest.mark.parametrize("model", [LOSSES, UNUSED], ids=["losses", "unused"])
def test_two_processes_log_what_one_does(model: list[str], tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert main([*COMMAND, *model, f"--runs={one}"]) == 0
    command = [sys.executable, "-m", "clusterformer", *COMMAND, *model, *TWO, f"--runs={two}"]
    environment = {**os.environ, "PYTHONPATH": TOYS}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "sync_dist" not in done.stderr  # Lightning's advice for what is synchronised already
    assert done.stdout.count("run directory:") == done.stdout.count("finished after") == 1
    assert [path.name for path in (two / "toy").iterdir()] == ["1"]
    expected = logged(one / "toy" / "1")
    assert len(expected) >= 12
    for row, reference in zip(logged(two / "toy" / "1"), expected, strict=True):
        assert row == pytest.approx(reference, rel=1e-4, abs=1e-5, nan_ok=True)


@pytest.mark.slow
def test_one_process_alone_has_a_text_that_is_long_enough_to_cluster(tmp_path: Path) -> None:
    lines = [f"{i % 2}\t{' '.join('abcdefgh'[(i * j) % 8] for j in range(6))}\n" for i in range(31)]
    rows = tmp_path / "rows.tsv"
    rows.write_text("".join([*lines, f"1\t{'a b c d ' * 20}\n"]))
    command = ["fit", "--pictures=false", "--baselines=false", "--data=Classification"]
    command += [f"--data.{part}={rows}" for part in ("train", "valid", "test")]
    command += ["--data.text_column=2", "--data.label_column=1", "--data.batch_size=16"]
    command += [*COMMAND[4:], "--trainer.max_epochs=1", "--model.attention.dense_length=32"]
    command += ["--model.attention.num_clusters=4", "--model.attention.min_width=4"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert main([*command, f"--runs={one}"]) == 0
    start = [sys.executable, "-m", "clusterformer", *command, *TWO, f"--runs={two}"]
    done = subprocess.run(start, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    row, reference = (logged(run / "classification" / "1")[-1] for run in (one, two))
    assert row.keys() == reference.keys()
    assert 0 < row["test/layer1/entropy"] < 1
    for name in ("test/loss", "test/accuracy", "test/keys_seen", "test/layer1/keys_seen"):
        assert row[name] == pytest.approx(reference[name], rel=1e-4)


@pytest.mark.slow
def test_nan_stops_both_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "clusterformer", *COMMAND, *TWO, f"--runs={tmp_path}"]
    done = subprocess.run(
        [*command, "--data.spoil_at=3"],
        env={**os.environ, "PYTHONPATH": TOYS},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.count("the loss is not finite at step 3") == 1


def test_a_finished_run_is_told_by_the_first_process_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert main([*TOY, "--baselines=false", f"--runs={tmp_path}"]) == 0
    resume = ["fit", f"--resume={tmp_path / 'toy' / '1'}", "--trust=toy_task"]
    assert set(train_together(2, [*resume, "--trainer.strategy=ddp"], log)) == {0}
    assert log.read_text().count("finished, nothing is left to train") == 1
