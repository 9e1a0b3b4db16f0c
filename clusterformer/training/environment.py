"""Description of this process, enough to repeat a run: command, commit, versions, hardware."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import clusterformer
from clusterformer.training.source import source_commit

PACKAGES = ("torch", "lightning", "torchmetrics", "jsonargparse", "numpy", "tokenizers", "triton")


def describe_environment() -> dict[str, Any]:
    """Describe this process: command, commit, versions and hardware, as environment.json has it."""
    return {
        "command": shlex.join(["clusterformer", *sys.argv[1:]]),
        "folder": str(Path.cwd()),
        "clusterformer": clusterformer.__version__,
        "commit": source_commit(),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "platform": platform.platform(),
        "cpu": _processor(),
        "cpus": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def time_now() -> str:
    """Write the time in UTC, to the second, as ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _processor() -> str:
    """Name of the processor; "" where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
