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
