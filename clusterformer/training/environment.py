"""Description of this process, enough to repeat a run: command, commit, versions, hardware."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import clusterformer

PACKAGES = ("torch", "lightning", "torchmetrics", "jsonargparse", "numpy", "tokenizers", "triton")


def describe_environment() -> dict[str, Any]:
    """Describe this process: command, commit, versions and hardware, as environment.json has it."""
    return {
        "command": shlex.join(["clusterformer", *sys.argv[1:]]),
        "folder": str(Path.cwd()),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "clusterformer": clusterformer.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Commit of the clone the package runs from, "+" for changes on top; None if not a clone."""
    source = Path(clusterformer.__file__).parent
    git = ["git", "-C", str(source)]
    try:
        tracked = [*git, "ls-files", "--error-unmatch", "__init__.py"]
        subprocess.run(tracked, check=True, capture_output=True)
        commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD"], capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.decode().strip() + ("+" if changed.returncode else "")
