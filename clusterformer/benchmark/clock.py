"""Wall-clock time of several functions that take turns, and of a plain matrix product."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

WARM_UP = 2  # turns


def take_turns(
    steps: Mapping[str, Callable[[], object]], repeats: int, device: str
) -> dict[str, list[float]]:
    """Milliseconds of each function, `repeats` times; all share what else the machine does."""
    samples: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(-WARM_UP, repeats):
        for name, step in steps.items():
            taken = _milliseconds(step, device)
            if turn >= 0:
                samples[name].append(taken)
    return samples


def matmul_rate(device: str, dtype: torch.dtype) -> float:
    """Operations a second of a product of large square matrices: the best of several."""
    size = 2048 if device == "cpu" else 8192
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    samples = take_turns({"product": lambda: a @ b}, 7, device)["product"]
    return 2 * size**3 / (min(samples) * 1e-3)


def _milliseconds(step: Callable[[], object], device: str) -> float:
    if device == "cpu":
        begun = time.perf_counter()
        step()
        return (time.perf_counter() - begun) * 1e3
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    step()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)
