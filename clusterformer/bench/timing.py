"""Times of several functions that take turns, of a matrix product and of a copy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

WARM_UP = 2
"""Turns that are not counted, unless a benchmark says otherwise."""


def time_in_turns(
    steps: Mapping[str, Callable[[], object]],
    repeats: int,
    device: str,
    warm_up: int = WARM_UP,
    report: Callable[[str, Mapping[str, float]], None] | None = None,
) -> dict[str, list[float]]:
    """Time each function `repeats` times, in turns, so that other load on the machine affects all.

    On a CPU with several threads it is wall-clock time. With one thread it is the CPU time of this
    process, which other work on the machine lengthens less. The first `warm_up` turns do not count.
    After each turn, `report` gets its name, such as "turn 1 of 9", and its times in milliseconds.

    Returns:
        Name to its times in milliseconds.
    """
    samples: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(-warm_up, repeats):
        taken = {name: _milliseconds(step, device) for name, step in steps.items()}
        if turn >= 0:
            for name, time_taken in taken.items():
                samples[name].append(time_taken)
        if report:
            report(f"turn {turn + warm_up + 1} of {warm_up + repeats}", taken)
    return samples


def matmul_rate(device: str, dtype: torch.dtype) -> float:
    """Measure operations per second of a product of large square matrices: the best of several."""
    size = 2048 if device == "cpu" else 8192
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    samples = time_in_turns({"product": lambda: a @ b}, 7, device)["product"]
    return 2 * size**3 / (min(samples) * 1e-3)


def copy_rate(device: str) -> float:
    """Measure bytes per second, read and written, of a large copy: the best of several."""
    source = torch.zeros(2**24 if device == "cpu" else 2**30, dtype=torch.uint8, device=device)
    samples = time_in_turns({"copy": source.clone}, 7, device)["copy"]
    return 2 * len(source) / (min(samples) * 1e-3)


def clock() -> float:
    """Read the clock for the CPU: CPU seconds with one thread, else wall-clock seconds."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def _milliseconds(step: Callable[[], object], device: str) -> float:
    if device == "cpu":
        begun = clock()
        step()
        return (clock() - begun) * 1e3
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    step()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)
