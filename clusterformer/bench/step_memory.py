"""Peak memory of one step, measured in a fresh process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module

import torch

from clusterformer.bench.fresh_process import iterate_in_fresh_process
from clusterformer.errors import InputError
from clusterformer.training import memory

Step = Callable[[], object]


def step_memory(warm_up: Callable[[], object], make_step: Callable[[], Step], device: str) -> float:
    """Measure the growth of memory over one step in a fresh process, in MiB.

    It has as many threads as this process.

    Args:
        warm_up: Something small to run first, so that libraries and thread pools are not counted.
        make_step: Maker of the step. Both must be picklable.
        device: "cpu" for resident memory, "cuda" for allocated memory of the GPU.

    Raises:
        InputError: if the process fails.
    """
    threads = torch.get_num_threads()
    (grown,) = iterate_in_fresh_process(_measure, warm_up, make_step, device, threads)
    return grown


def _measure(
    warm_up: Callable[[], object], make_step: Callable[[], Step], device: str, threads: int
) -> Iterator[float]:
    torch.set_num_threads(threads)  # each has buffers of its own
    import_module("torch._dynamo")  # custom operations import it at their first call
    warm_up()
    step = make_step()
    yield _cuda_growth(step) if device == "cuda" else _resident_growth(step)


def _resident_growth(step: Step) -> float:
    reset = memory.reset_peak()
    before = memory.resident("VmRSS")
    step()
    peak = memory.resident("VmHWM")
    if not reset or before is None or peak is None:
        raise InputError("this system does not tell the peak memory of a process; use --no-memory")
    return peak - before


def _cuda_growth(step: Step) -> float:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / memory.MIB
