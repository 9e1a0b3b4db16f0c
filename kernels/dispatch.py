"""The choice of an implementation: Triton on a GPU, code for CPU there where it is, else PyTorch.

CLUSTERFORMER_KERNELS=triton or =reference forces Triton or PyTorch; on a CPU, Triton needs
TRITON_INTERPRET=1 and is for tests. Full attention, causal or not, has no Triton, and does not ask.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch

VARIABLE = "CLUSTERFORMER_KERNELS"
CHOICES = ("triton", "reference")


@contextmanager
def forcing(choice: str) -> Iterator[None]:
    """Force an implementation, one of `CHOICES`, for a while, as the environment does."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = choice
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def forced() -> str | None:
    """Return the implementation that the environment asks for; None if none.

    Raises:
        ValueError: if it asks for an unknown one.
    """
    choice = os.environ.get(VARIABLE)
    if choice is not None and choice not in CHOICES:
        raise ValueError(f"{VARIABLE} must be one of {', '.join(CHOICES)}, got {choice!r}")
    return choice


def use_triton(device: torch.device) -> bool:
    """Tell whether Triton serves tensors on `device`.

    Raises:
        ValueError: if the environment asks for Triton and it is not installed.
    """
    choice = forced()
    if choice == "reference" or (choice is None and device.type != "cuda"):
        return False
    installed = find_spec("triton") is not None
    if choice == "triton" and not installed:
        raise ValueError(f"{VARIABLE}=triton: triton is not installed: pip install triton")
    return installed


def use_cpu(device: torch.device) -> bool:
    """Tell whether an operation for CPU serves tensors on `device`; ONNX has none.

    Raises:
        ValueError: if the environment asks for an unknown implementation.
    """
    return device.type == "cpu" and forced() != "reference" and not torch.onnx.is_in_onnx_export()
