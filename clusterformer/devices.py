"""Devices by their names in PyTorch: "cpu", "cuda", and "cuda:1", the second GPU."""

from __future__ import annotations

import torch

from clusterformer.errors import InputError


def find_device(name: str | torch.device) -> torch.device:
    """Find a device of this machine.

    Raises:
        InputError: if it is of another kind, or not here.
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(f"device is cpu, cuda or a GPU such as cuda:1, got {name!r}")
    if device.type == "cuda":
        number = torch.cuda.device_count()
        if not number:
            raise InputError(f"device {name}: there is no CUDA device")
        if (device.index or 0) >= number:
            raise InputError(f"device {name}: the last one here is cuda:{number - 1}")
    return device


def best_device() -> torch.device:
    """Return the first GPU, or the CPU where there is none."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
