"""Operations of one step of a layer, by the time that they take themselves."""

from __future__ import annotations

from torch.profiler import ProfilerActivity, profile

from clusterformer.bench.report import Row
from clusterformer.bench.subjects import Setting, Subject

WARM_UP = 2
"""Steps before those that count."""


def measure(name: str, setting: Setting, steps: int = 3) -> list[Row]:
    """Profile forward and backward of a layer on the CPU.

    Args:
        name: Name of the layer, as for `subjects.Subject`.
        setting: Sizes.
        steps: Steps to profile.

    Returns:
        One row an operation, the longest first: milliseconds of its own a step, share of the step,
        and calls a step.
    """
    subject = Subject(name, setting)
    for _ in range(WARM_UP):
        subject.step()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(steps):
            subject.step()
    events = found.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    rows: list[Row] = [
        {
            "operation": event.key,
            "ms": event.self_cpu_time_total / 1e3 / steps,
            "share": event.self_cpu_time_total / total,
            "calls": event.count / steps,
        }
        for event in events
    ]
    return sorted(rows, key=lambda row: -row["ms"])
