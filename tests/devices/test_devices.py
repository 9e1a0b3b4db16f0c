"""What runs on a GPU, on a device that pretends to be one: see tests/toy/pretended_device.py.

The checks run in a process of their own, since PyTorch keeps a device that it once knew. For some:

    python -m pytest -n0 tests/devices/check_mechanisms.py -k Routing
"""

import subprocess
import sys
from pathlib import Path

import pytest

FILES = sorted(Path(__file__).parent.glob("check_*.py"))


def run(marked: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-m", marked]
    done = subprocess.run([*command, *map(str, FILES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_tensors_are_on_the_same_device() -> None:
    run("not slow")


@pytest.mark.slow
def test_all_tensors_are_on_the_same_device_in_more_cases() -> None:
    run("slow")
