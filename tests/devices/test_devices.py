"""What runs on a GPU, on a device that pretends to be one: see tests/toy/pretended_device.py.

The checks, and tests that train, run in a process of their own, since PyTorch keeps a device that
it once knew. For some, with PYTHONPATH=tests/toy:

    python -m pytest -n0 -p pretended_device tests/devices/check_mechanisms.py -k Routing
    python -m pytest -n0 -p pretended_accelerator tests/tasks/test_translation.py
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch has no backends in Python",
)
HERE = Path(__file__).parent
TESTS = HERE.parent
CHECKS = [str(path) for path in sorted(HERE.glob("check_*.py"))]
TRAINING = [
    "devices/train_calibrated.py",
    "tasks",
    "huggingface/test_distillation.py",
    "test_api.py",
    "test_module.py",
]
LEFT_OUT = [
    "tasks/test_processes.py",  # autograd with a second device does not survive a fork
    "tasks/test_classification.py::test_real_news_loads_in_seconds_and_pads_little",
    # these compare weights before, on the CPU, with those after
    "test_module.py::test_weights_of_linear_layers_alone_decay",
    "test_module.py::test_an_indexer_learns_by_its_own_loss_beside_the_task",
]


def run(plugin: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pytest", "-p", plugin, "-q", "-n0", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(TESTS / "toy")}
    done = subprocess.run(
        [*command, *arguments], env=environment, cwd=TESTS.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_tensors_are_on_the_same_device() -> None:
    run("pretended_device", *CHECKS)


@pytest.mark.slow
def test_all_tensors_are_on_the_same_device_in_more_cases() -> None:
    run("pretended_device", "-m", "slow", *CHECKS)


@pytest.mark.slow
def test_tests_that_train_pass_on_another_device() -> None:
    left_out = [f"--deselect=tests/{name}" for name in LEFT_OUT]
    run("pretended_accelerator", *left_out, *(f"tests/{name}" for name in TRAINING))
