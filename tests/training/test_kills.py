"""Killed at random moments, or on a disk that is full: the run goes on to the same bits."""

import os
import random
import resource
import signal
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from forked import FORK
from toy_command import TOY

from clusterformer.cli.main import main
from clusterformer.training.checkpoints import read

COMMAND = [*TOY, "--data.size=24", "--model.dropout=0.3", "--checkpoint_every=2", "--keep=1"]
COMMAND += ["--trainer.max_epochs=2", "--trainer.log_every_n_steps=1", "--baselines=false"]


def start(arguments: list[str], log: Path, limit: int | None = None) -> BaseProcess:
    """Start a command in a fork of this process; `limit` is the largest file that it may write."""
    process = FORK.Process(target=_run, args=(arguments, log, limit))
    process.start()
    return process


def _run(arguments: list[str], log: Path, limit: int | None) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    if limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    sys.exit(main(arguments))


def ended(process: BaseProcess) -> int | None:
    process.join()
    return process.exitcode


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """An undisturbed run, and its seconds in a fork."""
    folder = tmp_path_factory.mktemp("whole")
    assert main([*COMMAND, f"--runs={folder}"]) == 0
    begun = time.monotonic()
    assert ended(start([*COMMAND, f"--runs={folder}"], folder / "log")) == 0
    return folder / "toy" / "1", time.monotonic() - begun


def go_on(folder: Path, whole: Path) -> None:
    """Resume what stands in a folder, or begin anew, and compare with the undisturbed run."""
    log = folder / "log"
    runs = sorted((folder / "toy").glob("*")) if (folder / "toy").exists() else []
    if runs and (runs[-1] / "config.yaml").exists():
        assert ended(start(["fit", f"--resume={runs[-1]}"], log)) == 0, log.read_text()
    else:
        if runs:
            assert ended(start(["fit", f"--resume={runs[-1]}"], log)) == 2
            assert "no training began here" in log.read_text()
        assert ended(start([*COMMAND, f"--runs={folder}"], log)) == 0, log.read_text()
    run = max((folder / "toy").iterdir(), key=lambda path: int(path.name))
    found, expected = (read(path / "checkpoints" / "last.ckpt") for path in (run, whole))
    assert found["global_step"] == expected["global_step"]
    for name, weight in expected["state_dict"].items():
        assert torch.equal(found["state_dict"][name], weight)
    assert (run / "metrics.csv").read_text() == (whole / "metrics.csv").read_text()
    files = ({path.name for path in (one / "checkpoints").iterdir()} for one in (run, whole))
    assert next(files) == next(files)
    assert "Traceback" not in log.read_text()


def test_a_run_killed_while_it_draws_draws_when_it_is_resumed(tmp_path: Path) -> None:
    run, log = tmp_path / "toy" / "1", tmp_path / "log"
    drawing = [*COMMAND, f"--runs={tmp_path}", "--pictures=true", "--data.killed_in_drawing=true"]
    assert ended(start(drawing, log)) == -signal.SIGKILL, log.read_text()
    for path in run.glob("pictures/*"):
        path.unlink()
    resume = ["fit", f"--resume={run}", "--trust=toy_task", "--data.killed_in_drawing=false"]
    assert ended(start(resume, log)) == 0, log.read_text()
    assert (run / "pictures" / "curves.png").exists()
    assert (run / "results.json").exists()
    assert ended(start(resume, log)) == 0
    assert "finished, nothing is left to train" in log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_run_killed_at_any_moment_ends_the_same(
    seed: int, whole: tuple[Path, float], tmp_path: Path
) -> None:
    draw = random.Random(seed)
    process = start([*COMMAND, f"--runs={tmp_path}"], tmp_path / "log")
    time.sleep(draw.random() * whole[1])
    process.kill()
    process.join()
    go_on(tmp_path, whole[0])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_run_on_a_full_disk_is_one_line_and_goes_on(
    seed: int, whole: tuple[Path, float], tmp_path: Path
) -> None:
    size = (whole[0] / "checkpoints" / "last.ckpt").stat().st_size
    limit = int(random.Random(seed).choice([0.02, 0.1, 0.3, 0.6, 0.99]) * size)
    log = tmp_path / "log"
    code = ended(start([*COMMAND, f"--runs={tmp_path}"], log, limit))
    printed = [line for line in log.read_text().splitlines() if "error:" in line]
    assert (code, len(printed)) == (2, 1), log.read_text()
    go_on(tmp_path, whole[0])
