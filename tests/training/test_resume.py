"""A run killed at any moment goes on as if nothing had happened."""

import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor

from clusterformer import ClusterFormer
from clusterformer.cli.logs import quieten
from clusterformer.cli.main import main
from clusterformer.training.checkpoint_callbacks import LastCheckpoint
from clusterformer.training.checkpoints import CheckpointFiles, read
from clusterformer.training.metrics_file import MetricsFile

TOYS = str(Path(__file__).parents[1] / "toy")
sys.path.append(TOYS)
from forked import Process  # noqa: E402
from toy_task import Toy  # noqa: E402

TINY = {"d_model": 8, "num_heads": 2, "num_layers": 1, "warmup": 4}


class EveryCheckpoint(LastCheckpoint):
    """Keeps a copy of each checkpoint, under its number."""

    def save(self, trainer: Trainer) -> None:
        super().save(trainer)
        folder = Path(str(self.dirpath))
        shutil.copy(folder / "last.ckpt", folder / f"{time.time_ns()}")


def fit(
    folder: Path, options: dict[str, Any], resume: Path | None = None, **model: Any
) -> ClusterFormer:
    quieten()
    folder.mkdir(exist_ok=True)
    step = torch.load(resume)["global_step"] if resume else 0
    torch.manual_seed(1)
    network = ClusterFormer(**{**TINY, **model})
    trainer = Trainer(
        accelerator="cpu",
        logger=MetricsFile(folder / "metrics.csv", step),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[EveryCheckpoint(folder, every=1)],
        plugins=[CheckpointFiles()],
        **options,
    )
    trainer.fit(network, Toy(), ckpt_path=resume, weights_only=True)
    return network


def metrics(folder: Path) -> str:
    return (folder / "metrics.csv").read_text()


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("options", "model"),
    [
        pytest.param({"max_epochs": 3}, {}, marks=pytest.mark.slow),
        pytest.param({"max_steps": 13}, {"schedule": "cosine"}, marks=pytest.mark.slow),
        pytest.param({"max_epochs": 3}, {"schedule": "cosine"}, marks=pytest.mark.slow),
        pytest.param({"max_steps": 13}, {"optimizer": "RAdam"}, marks=pytest.mark.slow),
        pytest.param({"max_epochs": 2, "accumulate_grad_batches": 2}, {}, marks=pytest.mark.slow),
        pytest.param({"max_epochs": 2, "val_check_interval": 2}, {}, marks=pytest.mark.slow),
        pytest.param({"max_epochs": 4, "check_val_every_n_epoch": 2}, {}, marks=pytest.mark.slow),
        pytest.param(
            {"max_steps": 13, "val_check_interval": 3, "check_val_every_n_epoch": None},
            {},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_resuming_from_every_checkpoint_ends_with_the_same_weights(
    tmp_path: Path, options: dict[str, Any], model: dict[str, Any]
) -> None:
    whole = fit(tmp_path / "whole", options, **model).state_dict()
    checkpoints = sorted((tmp_path / "whole").glob("[0-9]*"))
    assert len(checkpoints) >= 5
    for number, checkpoint in enumerate(checkpoints):
        again = tmp_path / f"{number}"
        again.mkdir()
        shutil.copy(tmp_path / "whole" / "metrics.csv", again)
        resumed = fit(again, options, resume=checkpoint, **model).state_dict()
        assert same(whole, resumed), f"checkpoint {number} of {len(checkpoints)}"
        assert metrics(again) == metrics(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_stopped_within_an_epoch_can_be_prolonged(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", {"max_steps": 13}).state_dict()
    fit(tmp_path / "part", {"max_steps": 7})
    last = tmp_path / "part" / "last.ckpt"
    assert read(last)["global_step"] == 7
    prolonged = fit(tmp_path / "part", {"max_steps": 13}, resume=last).state_dict()
    assert same(whole, prolonged)
    assert metrics(tmp_path / "part") == metrics(tmp_path / "whole")


def arguments(folder: Path, *more: str) -> list[str]:
    tiny = [f"--model.{name}={value}" for name, value in TINY.items()]
    (folder / "notes").mkdir(parents=True)
    return [
        *(
            "fit",
            "--pictures=false",
            "--data=toy_task.Toy",
            f"--data.notes={folder / 'notes'}",
            *tiny,
        ),
        *(f"--runs={folder / 'runs'}", "--checkpoint_every=2", "--trainer.max_epochs=3"),
        *("--trainer.accelerator=cpu", "--trainer.log_every_n_steps=1", *more),
    ]


def seen(folder: Path) -> dict[int, list[int]]:
    """Examples of each training step."""
    steps: dict[int, list[int]] = defaultdict(list)
    for notes in (folder / "notes").iterdir():
        for line in notes.read_text().splitlines():
            step, index = map(int, line.split())
            steps[step].append(index)
    return {step: sorted(indices) for step, indices in steps.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody killed."""
    folder = tmp_path_factory.mktemp("whole")
    assert main(arguments(folder)) == 0
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run killed within its second epoch, after its last checkpoint."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "clusterformer", *arguments(folder, "--data.pause=0.2")]
    process = Process(command, env={**os.environ, "PYTHONPATH": TOYS})
    deadline = time.monotonic() + 60
    while max(seen(folder), default=0) < 8 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait()
    return folder


def copied(killed: Path, folder: Path) -> tuple[Path, int]:
    """A copy of the killed run, its notes cut at its checkpoint, and the step of that."""
    run = shutil.copytree(killed / "runs" / "toy" / "1", folder / "runs" / "toy" / "1")
    step = read(run / "checkpoints" / "last.ckpt")["global_step"]
    assert 5 < step < 10
    (folder / "notes").mkdir()
    lines = [f"{s} {i}\n" for s, found in seen(killed).items() if s < step for i in found]
    (folder / "notes" / "killed").write_text("".join(lines))
    return run, step


def test_a_killed_run_resumes_to_the_same_weights(
    whole: Path, killed: Path, tmp_path: Path
) -> None:
    run, _ = copied(killed, tmp_path)
    assert main(["fit", f"--resume={run}", f"--data.notes={tmp_path / 'notes'}"]) == 0
    reference = whole / "runs" / "toy" / "1"
    ended, expected = (read(r / "checkpoints" / "last.ckpt") for r in (run, reference))
    assert same(ended["state_dict"], expected["state_dict"])
    assert seen(tmp_path) == seen(whole)
    assert metrics(run) == metrics(reference)
    assert (run / "config-2.yaml").exists()
    assert not (run.parent / "2").exists()


@pytest.mark.slow
def test_two_processes_take_over_from_one(whole: Path, killed: Path, tmp_path: Path) -> None:
    run, _ = copied(killed, tmp_path)
    command = [sys.executable, "-m", "clusterformer", "fit", f"--resume={run}"]
    command += ["--trainer.strategy=ddp", "--trainer.devices=2", "--trust=toy_task"]
    command += [f"--data.notes={tmp_path / 'notes'}", "--data.pause=0"]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": TOYS}, check=True)
    assert seen(tmp_path) == seen(whole)
    assert len(list((tmp_path / "notes").iterdir())) == 3
