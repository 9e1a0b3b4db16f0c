"""Peak memory of one step, measured in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from clusterformer.errors import InputError
from clusterformer.training import memory


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
        if not memory.reset_peak():
            raise InputError("this system has no /proc to read memory from; use --no-memory")
        before = memory.resident("VmRSS") or 0.0
        step()
        pipe.send((memory.resident("VmHWM") or 0.0) - before)
        return
    import torch

    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    pipe.send((torch.cuda.max_memory_allocated() - held) / memory.MIB)
