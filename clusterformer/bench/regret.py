"""Time of the default form of neural clustering against the best choice at the same shape.

regret = time of the default / time of the best - 1, where the best is the fastest of full attention
and of all forms, the default among them.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from clusterformer.bench.report import Row
from clusterformer.bench.subjects import Setting, Subject
from clusterformer.bench.timing import time_in_turns

DENSE, DEFAULT = "FullAttention", "neural"
CHOICES: dict[bool, tuple[str, ...]] = {
    False: (DENSE, DEFAULT, "paper", "blocks-64", "blocks-128"),
    True: (DENSE, DEFAULT, "chunks-32", "chunks-64", "chunks-128"),
}
"""Layers to choose from, bidirectional (False) and strictly causal (True)."""

HOPELESS = 1.5
"""A layer whose only warm step took this many times the shortest is not measured again."""


class BatchShape(NamedTuple):
    """Attributes: tokens of a sequence, sequences of a batch, model width."""

    length: int
    batch: int
    d_model: int


SHAPES = (
    BatchShape(64, 32, 256),
    BatchShape(128, 16, 512),
    BatchShape(256, 8, 128),
    BatchShape(512, 4, 256),
    BatchShape(600, 4, 256),
    BatchShape(1024, 1, 1024),
    BatchShape(2048, 2, 256),
    BatchShape(4096, 1, 256),
    BatchShape(8192, 1, 128),
    BatchShape(16384, 1, 128),
)
"""Each in two data types, bidirectional and causal: 40 shapes."""


def settings(count: int, dtypes: Sequence[str] = ("fp32", "bf16")) -> list[Setting]:
    """Choose `count` of all shapes, evenly spread; heads are 64 wide."""
    every = [
        Setting(
            length=length, tokens=batch * length, d_model=d_model, num_heads=d_model // 64,
            causal=causal, dtype=dtype,
        )
        for length, batch, d_model in SHAPES
        for dtype in dtypes
        for causal in (False, True)
    ]  # fmt: skip
    count = min(count, len(every))
    return [every[number * len(every) // count] for number in range(count)]


def measure(chosen: Sequence[Setting], repeats: int = 7) -> Iterator[Row]:
    """Measure forward and backward of every choice at each shape, in turns.

    Yields:
        One row a shape: the medians by layer, None for one that is not measured again; the fastest;
        `regret` against it; `over_dense`, the same against full attention alone, None where that
        was hopeless; and `keys_seen` of the default.
    """
    for setting in chosen:
        subjects = {name: Subject(name, setting) for name in CHOICES[setting.causal]}
        tried = {name: subject.step for name, subject in subjects.items()}
        once = {name: times[0] for name, times in time_in_turns(tried, 1, "cpu", 1).items()}
        limit = HOPELESS * min(once.values())
        steps = {
            name: subject.step
            for name, subject in subjects.items()
            if once[name] <= limit or name == DEFAULT
        }
        samples = time_in_turns(steps, repeats, "cpu", 0)
        medians = {name: statistics.median(times) for name, times in samples.items()}
        best = min(medians, key=lambda name: medians[name])
        dense = medians.get(DENSE)
        yield {
            "length": setting.length,
            "batch": setting.batch,
            "d_model": setting.d_model,
            "dtype": setting.dtype,
            "causal": setting.causal,
            "median_ms": {name: medians.get(name) for name in subjects},
            "first_ms": once,
            "best": best,
            "regret": medians[DEFAULT] / medians[best] - 1,
            "over_dense": medians[DEFAULT] / dense - 1 if dense else None,
            "keys_seen": subjects[DEFAULT].keys_seen(),
        }
        del subjects, steps
        gc.collect()
