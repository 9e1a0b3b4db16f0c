"""A comparison as a job array of Slurm: each task of the array trains one shard."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from clusterformer.errors import InputError
from clusterformer.whole_files import write_text

WARNING_SECONDS = 120
"""Time before the end of a job's time limit at which its training writes a checkpoint."""


def write_script(
    folder: Path, arguments: Sequence[str], shards: Sequence[int], total: int, options: str
) -> Path:
    """Write the job script of an array to `folder`/array.sh.

    A task that is preempted is queued again, and goes on from its last checkpoint.

    Args:
        folder: Output directory of the comparison.
        arguments: Arguments of `clusterformer compare` that all tasks share.
        shards: Shards to train, from 1.
        total: Number of shards of the comparison.
        options: Options of sbatch, such as "--time=8:00:00 --gres=gpu:1".

    Raises:
        OSError: if it cannot be written, such as on a full disk; an earlier script stays.
    """
    logs = folder.absolute() / "slurm"
    logs.mkdir(parents=True, exist_ok=True)
    directives = [
        f"--job-name={folder.resolve().name}",
        f"--array={','.join(map(str, shards))}",
        f"--chdir={Path.cwd()}",
        f"--output={logs}/%A_%a.txt",
        "--requeue",
        "--open-mode=append",
        f"--signal=TERM@{WARNING_SECONDS}",
        *shlex.split(options),
    ]
    command = [sys.executable, "-m", "clusterformer", "compare", *arguments]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {shlex.quote(directive)}" for directive in directives),
        f'srun --ntasks=1 {shlex.join(command)} --shard "$SLURM_ARRAY_TASK_ID/{total}"',
    ]
    script = folder / "array.sh"
    write_text(script, "\n".join(lines) + "\n")
    return script


def submit(script: Path) -> str:
    """Hand a job script to sbatch, and return what it prints.

    Raises:
        InputError: if there is no sbatch here, or it refuses the script.
    """
    try:
        done = subprocess.run(["sbatch", str(script)], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise InputError(
            f"no sbatch on this machine; the job script is {script}, submit it where Slurm runs"
        ) from None
    if done.returncode:
        raise InputError(f"sbatch refused {script}: {' '.join(done.stderr.split())}")
    return done.stdout.strip()
