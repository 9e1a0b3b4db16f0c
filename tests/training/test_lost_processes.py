"""Processes that die, come late or stand still, and what becomes of the training."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from together import start_together, train_together
from toy_command import TOY

from clusterformer.cli.main import main
from clusterformer.training.checkpoints import read

TOYS = str(Path(__file__).parents[1] / "toy")
COMMAND = [sys.executable, "-m", "clusterformer", "fit", "--data=toy_task.Toy"]
COMMAND += ["--model.d_model=8", "--model.num_heads=2", "--model.num_layers=1"]
COMMAND += ["--trainer.accelerator=cpu"]
COMMAND += ["--trainer.max_epochs=20", "--checkpoint_every=2", "--data.pause=0.2"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": TOYS, "OMP_NUM_THREADS": "1"}


def children(process: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2_sharded_checkpoint"])
@pytest.mark.parametrize("first", [False, True], ids=["second", "first"])
def test_a_killed_process_is_named_and_no_other_stays(
    first: bool, strategy: str, tmp_path: Path
) -> None:
    run, errors = tmp_path / "runs" / "toy" / "1", tmp_path / "errors"
    with errors.open("wb") as file:
        started = subprocess.Popen(
            [
                *COMMAND,
                "--trainer.devices=2",
                f"--trainer.strategy={strategy}",
                f"--runs={tmp_path / 'runs'}",
            ],
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=file,
        )
    deadline = time.monotonic() + 240
    while not (run / "checkpoints" / "last.ckpt").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    [second] = children(started.pid)
    os.kill(started.pid if first else second, signal.SIGKILL)
    assert started.wait(30) == (-signal.SIGKILL if first else 2)
    name = "process 0 ended" if first else "process 1 was killed by signal 9"
    while time.monotonic() < deadline and (
        Path(f"/proc/{second}").exists() or name not in errors.read_text()
    ):
        time.sleep(0.1)
    printed = [line for line in errors.read_text().splitlines() if "error:" in line]
    assert len(printed) == 1
    assert f"{name}, of 2 that trained together, at step" in printed[0]
    assert "Traceback" not in errors.read_text()
    assert read(run / "checkpoints" / "last.ckpt")["global_step"] >= 2


def test_a_process_that_is_asked_to_end_ends_all_after_the_step(tmp_path: Path) -> None:
    log, run = tmp_path / "log", tmp_path / "toy" / "1"
    command = [*TOY, "--trainer.strategy=ddp", "--baselines=false", f"--runs={tmp_path}"]
    command += ["--trainer.max_epochs=1000", "--data.pause=0.05"]
    processes = start_together(2, command, log)
    deadline = time.monotonic() + 120
    while not (run / "checkpoints" / "last.ckpt").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(processes[1].pid or 0, signal.SIGTERM)
    for process in processes:
        process.join(30)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [130, 130], log.read_text()
    assert f"go on with: clusterformer fit --resume {run}" in log.read_text()


@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_killed_in_the_test_after_training_is_one_line(
    killed: int, tmp_path: Path
) -> None:
    log, run = tmp_path / "log", tmp_path / "toy" / "1"
    command = [*TOY, "--trainer.strategy=ddp", "--baselines=false", f"--runs={tmp_path}"]
    codes = train_together(2, [*command, f"--data.killed_in_test={killed}"], log)
    assert (codes[killed], codes[1 - killed]) == (-signal.SIGKILL, 2), log.read_text()
    printed = [line for line in log.read_text().splitlines() if "error:" in line.lower()]
    assert len(printed) == 1
    assert "another process ended, of 2 that trained together, at step 5; go on with" in printed[0]
    assert not (run / "results.json").exists()
    resume = ["fit", f"--resume={run}", "--trust=toy_task", "--data.killed_in_test=null"]
    assert set(train_together(2, resume, log)) == {0}, log.read_text()
    assert "Traceback" not in log.read_text()
    assert (run / "results.json").exists()


def test_a_process_killed_in_a_test_of_its_own_is_one_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert main([*TOY, "--baselines=false", f"--runs={tmp_path}"]) == 0
    test = ["test", f"--checkpoint={tmp_path / 'toy' / '1'}", "--trust=toy_task"]
    test += ["--trainer.accelerator=cpu", "--data.killed_in_test=1"]
    assert train_together(2, test, log) == [2, -signal.SIGKILL], log.read_text()
    [printed] = [line for line in log.read_text().splitlines() if "error:" in line.lower()]
    assert printed.endswith("another process ended, of 2 that worked together; start them again")


def node(folder: Path, port: int, script: list[str]) -> subprocess.Popen:
    """One of two nodes, of one process each."""
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1",
         "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", *script,
         "--trainer.devices=1", "--trainer.num_nodes=2", "--trainer.max_epochs=2",
         f"--runs={folder}"],
        env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.slow
def test_a_node_that_comes_late_and_one_that_stands_still_change_nothing(tmp_path: Path) -> None:
    written = []
    for name, pause in (("plain", 0), ("late", 8)):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        nodes = [node(tmp_path / name, port, COMMAND[1:])]
        time.sleep(pause)
        nodes.append(node(tmp_path / name, port, COMMAND[1:]))
        run, deadline = tmp_path / name / "toy" / "1", time.monotonic() + 240
        if pause:
            while not (run / "checkpoints" / "last.ckpt").exists() and time.monotonic() < deadline:
                time.sleep(0.1)
            [halted] = children(nodes[1].pid)
            os.kill(halted, signal.SIGSTOP)
            time.sleep(pause)
            os.kill(halted, signal.SIGCONT)
        assert [process.wait(240) for process in nodes] == [0, 0]
        written.append((run / "metrics.csv").read_bytes())
    assert written[0] == written[1]
