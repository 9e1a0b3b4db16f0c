"""Translation, language models and clusters train alike on two processes, and after a kill."""

import csv
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from clusterformer.cli.main import main
from clusterformer.training.checkpoints import read

pytestmark = pytest.mark.slow

TINY = [
    *("--model.attention=NeuralClusteringAttention", "--model.attention.num_clusters=3"),
    *("--model.d_model=16", "--model.num_heads=2", "--model.num_layers=1", "--model.warmup=4"),
    *("--trainer.max_epochs=3", "--trainer.log_every_n_steps=1", "--trainer.accelerator=cpu"),
]


@pytest.fixture(params=["translation", "language-model", "clustering"])
def command(request, tmp_path: Path, monkeypatch) -> list[str]:
    """A training of some 20 steps an epoch on made-up text or points."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if request.param == "clustering":
        np.save(tmp_path / "x.npy", make_points())
        # with one neighbour no process draws one; surplus clusters merge half-way
        data = [f"--data.name={tmp_path / 'x.npy'}", "--data.n_clusters=5", "--data.n_neighbors=1"]
        data += ["--data.batch_size=27", "--data.merge_at=30", "--model.lr=0.01"]
        return ["fit", "--pictures=false", "--data=Clustering", *data, *TINY]
    rng = random.Random(0)
    words = ["ein", "hund", "katze", "rot", "blau", "haus", "baum", "geht"]
    lines = [" ".join(rng.choices(words, k=rng.randint(2, 9))) for _ in range(201)]
    files = {"source": "\n".join(lines) + "\n", "target": "\n".join(lines).upper() + "\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    if request.param == "language-model":
        data = [f"--data.train={tmp_path / 'source'}", "--data.context=32", "--data.batch_size=9"]
        return ["fit", "--pictures=false", "--data=LanguageModeling", *data, *TINY]
    data = [
        f"--data.{part}_{name}={tmp_path / name}" for part in ("train", "valid") for name in files
    ]
    sizes = ["--data.vocab_size=280", "--data.tokens_per_batch=200", "--data.valid_sentences=7"]
    return ["fit", "--pictures=false", "--data=Translation", *data, *sizes, *TINY]


def make_points() -> np.ndarray:
    """Points around five centers, (601, 5): the last of 21 batches of 27 has one point."""
    random = np.random.default_rng(0)
    return 4 * np.eye(5)[random.integers(5, size=601)] + random.standard_normal((601, 5))


def run_of(folder: Path) -> Path:
    (run,) = folder.glob("*/1")
    return run


def logged(run: Path) -> list[dict[str, float]]:
    with (run / "metrics.csv").open() as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_processes_log_what_one_does(strategy: str, command: list[str], tmp_path: Path) -> None:
    options = [*command, "--model.dropout=0"]
    assert main([*options, f"--runs={tmp_path / 'one'}"]) == 0
    two = [sys.executable, "-m", "clusterformer", *options, f"--runs={tmp_path / 'two'}"]
    two += [f"--trainer.strategy={strategy}", "--trainer.devices=2", "--pictures=true"]
    done = subprocess.run(two, capture_output=True, text=True)
    if strategy == "fsdp2" and "--data=Clustering" in command:
        assert done.returncode == 2
        assert "fsdp2 does not train clusters" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    expected, found = (logged(run_of(tmp_path / name)) for name in ("one", "two"))
    assert len(expected) > 45
    for row, reference in zip(found, expected, strict=True):
        assert row == pytest.approx(reference, rel=2e-3, abs=1e-4, nan_ok=True)


def test_a_run_killed_within_an_epoch_ends_with_the_same_weights(
    command: list[str], tmp_path: Path
) -> None:
    command = [*command, "--model.dropout=0.1", "--checkpoint_every=3"]
    assert main([*command, f"--runs={tmp_path / 'whole'}"]) == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "clusterformer", *command, f"--runs={tmp_path / 'killed'}"]
    )
    while process.poll() is None:
        metrics = list((tmp_path / "killed").glob("*/1/metrics.csv"))
        if metrics and len(logged(metrics[0].parent)) > 30:
            process.send_signal(signal.SIGKILL)
        time.sleep(0.01)
    assert process.returncode == -signal.SIGKILL
    whole, killed = (run_of(tmp_path / name) for name in ("whole", "killed"))
    batches = len(logged(whole)) // 3
    assert read(killed / "checkpoints" / "last.ckpt")["global_step"] % batches
    assert main(["fit", f"--resume={killed}"]) == 0
    ended, expected = (
        read(run / "checkpoints" / "last.ckpt")["state_dict"] for run in (killed, whole)
    )
    assert ended.keys() == expected.keys()
    assert all(torch.equal(ended[name], expected[name]) for name in expected)
    assert (killed / "metrics.csv").read_text() == (whole / "metrics.csv").read_text()
