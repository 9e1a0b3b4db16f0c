"""A process of a training dies: one line names it, the others end, and the run goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterformer.training.checkpoints import read

TOYS = str(Path(__file__).parents[1] / "toy")
COMMAND = [sys.executable, "-m", "clusterformer", "fit", "--data=toy_task.Toy"]
COMMAND += ["--model.d_model=8", "--model.num_heads=2", "--model.num_layers=1"]
COMMAND += ["--trainer.accelerator=cpu", "--trainer.devices=2"]
COMMAND += ["--trainer.max_epochs=20", "--checkpoint_every=2", "--data.pause=0.2"]


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
        main = subprocess.Popen(
            [*COMMAND, f"--trainer.strategy={strategy}", f"--runs={tmp_path / 'runs'}"],
            env={**os.environ, "PYTHONPATH": TOYS},
            stdout=subprocess.DEVNULL,
            stderr=file,
        )
    deadline = time.monotonic() + 240
    while not (run / "checkpoints" / "last.ckpt").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    [second] = children(main.pid)
    os.kill(main.pid if first else second, signal.SIGKILL)
    assert main.wait(30) == (-signal.SIGKILL if first else 2)
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
