"""Memory of this process and of its GPU."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

MIB = 2**20
_STATUS = Path("/proc/self/status")


def resident(field: str) -> float | None:
    """Read the resident memory of this process.

    Args:
        field: "VmRSS" for the memory now, "VmHWM" for the peak.

    Returns:
        MiB; None on a system without /proc.
    """
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = (line for line in lines if line.startswith(f"{field}:"))
    return next((int(line.split()[1]) * 1024 / MIB for line in found), None)


def reset_peak() -> bool:
    """Let the peak "VmHWM" start anew; False where the system cannot."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def release_freed() -> None:
    """Give the system back what was freed, which the C library keeps; where that is glibc."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def held(optimizers: Iterable[Optimizer]) -> float:
    """Memory of this process for trained weights and the state of their optimisers, MiB."""
    tensors = [weight for o in optimizers for group in o.param_groups for weight in group["params"]]
    tensors += [x for o in optimizers for state in o.state.values() for x in state.values()]
    own = (x.to_local() if hasattr(x, "to_local") else x for x in tensors)
    return sum(x.numel() * x.element_size() for x in own) / MIB


def peak(device: torch.device) -> float:
    """Peak memory of this process, or on a GPU of its tensors there, MiB."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device) / MIB
    found = resident("VmHWM")
    if found is not None:
        return found
    # not where /proc is: there its peak begins at that of the parent process
    from resource import RUSAGE_SELF, getrusage

    unit = 1 if sys.platform == "darwin" else 1024
    return unit * getrusage(RUSAGE_SELF).ru_maxrss / MIB
