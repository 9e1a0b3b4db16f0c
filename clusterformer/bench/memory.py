"""Peak memory of one step, measured in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterformer.errors import InputError

MIB = 2**20


def peak(
    warm_up: Callable[[], object], make: Callable[[], Callable[[], object]], device: str
) -> float:
    """Growth over one step, MiB: of the resident set on CPU, of allocated memory on a GPU.

    Args:
        warm_up: Runs something small first: libraries and thread pools are not the step's.
        make: Makes the step. Both must be picklable.
        device: "cpu" or "cuda".
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(theirs, warm_up, make, device))
    process.start()
    theirs.close()
    try:
        return float(ours.recv())
    except EOFError:
        raise InputError("the process that measures memory ended early, see above") from None
    finally:
        process.join()


def _report(
    pipe: Any,
    warm_up: Callable[[], object],
    make: Callable[[], Callable[[], object]],
    device: str,
) -> None:
    warm_up()
    step = make()
    if device == "cpu":
        forget_peak()
        before = resident("VmRSS")
        step()
        pipe.send(resident("VmHWM") - before)
        return
    import torch

    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    pipe.send((torch.cuda.max_memory_allocated() - held) / MIB)


def forget_peak() -> None:
    """Let the highest of `resident` start anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def resident(field: str) -> float:
    """Memory of this process in MiB: VmRSS now, VmHWM at its highest.

    Not getrusage: its highest starts from that of the parent process.
    """
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / MIB
    raise InputError(f"/proc/self/status has no {field}; use --no-memory")
