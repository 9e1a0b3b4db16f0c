"""Shared by every test: one thread a worker, Triton's interpreter without a GPU, a fixed seed.

On a GPU: CLUSTERFORMER_TEST_DEVICE=cuda python -m pytest tests/attention tests/models
"""

import os
import random
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

# before torch loads, and inherited by child processes: workers would fight for the cores otherwise
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np
import pytest
import torch

# toy tasks and servers that several tests use
sys.path.append(str(Path(__file__).parent / "toy"))

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    # read when @triton.jit runs, so before any kernel file is imported
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not HAS_GPU:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    """Make tensors and modules on $CLUSTERFORMER_TEST_DEVICE, such as cuda, where it is set."""
    name = os.environ.get("CLUSTERFORMER_TEST_DEVICE")
    with torch.device(name) if name else nullcontext():
        yield


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data sets, $CLUSTERFORMER_DATA; without it the test is skipped."""
    root = os.environ.get("CLUSTERFORMER_DATA")
    if not root:
        pytest.skip("set CLUSTERFORMER_DATA to the folder of data sets")
    return Path(root)
