"""Time, memory and operations of attention layers, side by side at several lengths."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from clusterformer.bench.flops import count_flops
from clusterformer.bench.report import Row
from clusterformer.bench.step_memory import step_memory
from clusterformer.bench.subjects import (
    DTYPES,
    Setting,
    Subject,
    default_names,
    make_layer_step,
)
from clusterformer.bench.timing import matmul_rate, time_in_turns

WARM_UP_TOKENS = 128
"""Tokens in the warm-up of a fresh process; the packages need more tokens than 100 clusters."""


def measure(
    settings: Iterable[Setting],
    names: Sequence[str] | None = None,
    *,
    peak_rate: float | None = None,
    repeats: int = 7,
    memory: bool = True,
    limit: float | None = None,
) -> Iterator[Row]:
    """Measure forward, and forward and backward, of each layer at each setting.

    Args:
        settings: Sizes, from the shortest sequence to the longest.
        names: Names of subjects; None: `default_names`.
        peak_rate: Operations per second of a matrix product; None: measured at each setting.
        repeats: Measurements of each.
        memory: Whether to measure peak memory in fresh processes.
        limit: Seconds; a layer whose step takes longer is left out from the next setting on.

    Yields:
        One row for each layer at each setting where it runs; `times_floor` is the time divided by
        that of the same operations as one matrix product, `keys_seen` the share of the text that a
        token attends to, None where a public package does not say.
    """
    slow: set[str] = set()
    for setting in settings:
        chosen = [name for name in names or default_names(setting.causal) if name not in slow]
        rate = peak_rate or matmul_rate(setting.device, DTYPES[setting.dtype])
        for row in _measure_setting(setting, chosen, rate, repeats, memory):
            yield row
            if limit and row["median_ms"] > 1e3 * limit:
                slow.add(row["mechanism"])


def _measure_setting(
    setting: Setting, names: Sequence[str], peak_rate: float, repeats: int, memory: bool
) -> Iterator[Row]:
    subjects = {name: Subject(name, setting) for name in names}
    subjects = {
        name: subject for name, subject in subjects.items() if _runs(name, subject, setting)
    }
    device = setting.device
    forward = time_in_turns({n: s.forward for n, s in subjects.items()}, repeats, device)
    both = time_in_turns({n: s.step for n, s in subjects.items()}, repeats, device)
    for name, subject in subjects.items():
        milliseconds = statistics.median(both[name])
        operations = count_flops(subject.step)
        yield {
            "mechanism": name,
            "length": setting.length,
            "batch": setting.batch,
            "forward_ms": statistics.median(forward[name]),
            "median_ms": milliseconds,
            "forward_samples_ms": forward[name],
            "samples_ms": both[name],
            "peak_mib": _peak_mib(name, setting) if memory else None,
            "gflop": operations / 1e9,
            "times_floor": milliseconds * 1e-3 * peak_rate / operations,
            "keys_seen": subject.keys_seen(),
        }


def _runs(name: str, subject: Subject, setting: Setting) -> bool:
    """Run a layer once, so that one that cannot (a package in bf16) does not stop the others."""
    try:
        subject.step()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        at = f"{setting.length} tokens in {setting.dtype}"
        print(f"left out: {name} at {at}: {reason}", file=sys.stderr, flush=True)
        return False
    return True


def _peak_mib(name: str, setting: Setting) -> float:
    small = replace(setting, length=WARM_UP_TOKENS, tokens=WARM_UP_TOKENS)
    warm_up = partial(run_layers, [name, "FullAttention", "neural"], small)
    return step_memory(warm_up, partial(make_layer_step, name, setting), setting.device)


def run_layers(names: Sequence[str], setting: Setting) -> None:
    """Run each layer forward and backward once; warms a fresh process up."""
    for name in names:
        make_layer_step(name, setting)()
