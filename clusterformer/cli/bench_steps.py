"""`clusterformer bench steps`: whole training steps of a configuration."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from clusterformer.cli.bench_options import BenchArguments
from clusterformer.cli.bench_report import print_times, report_each

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterformer.module import ClusterFormer
    from clusterformer.task import Task

HELP = """
usage: clusterformer bench steps --config FILE [options]

Measure whole training steps of a configuration, optimizer included, on the CPU, on a batch of its
longest texts. "attention" (without projections) and "optimizer" are parts of the step; "data", the
mean time of making a batch, is not. "keys" is the share of its text that a token attends to. All
take turns, and the table follows the last turn; the times of a turn that takes over 5 seconds are
printed at once.

  --config FILE         a configuration, as for fit; more options of fit change it, such as
                        --data.max_length 2048
  --mechanisms NAME ... `configured`, its own, or classes in the place of model.attention (default:
                        FullAttention configured); decoder and outer layers keep those they name
  --dtype fp32          fp32, bf16 or fp16: autocast
  --repeats 7           measurements of each
  --threads N           CPU threads (default: all cores)
  --no-memory           do not measure memory
  --out FILE.json       write all measurements, each as it comes
"""


def run(arguments: list[str]) -> None:
    """Measure, print the table, write the JSON."""
    parser = BenchArguments("mechanisms", "dtype", "repeats", "memory")
    parser.add_argument("--config", required=True)
    parser.set_defaults(mechanisms=["FullAttention", "configured"])
    options, changes = parser.parse_beside(arguments)
    from clusterformer.bench import steps

    makers = {name: partial(_make, options.config, changes, name) for name in options.mechanisms}
    options.changes = changes
    found = steps.measure(
        makers,
        dtype=options.dtype,
        repeats=options.repeats,
        memory=options.memory,
        report=_report_turn,
    )
    for rows in report_each(options, found):
        print_times(rows[-1], rows)


LONG_TURN = 5_000
"""Milliseconds from which on the times of a turn are printed."""


def _report_turn(turn: str, taken: Mapping[str, float]) -> None:
    if sum(taken.values()) >= LONG_TURN:
        times = ", ".join(f"{name} {time:,.0f} ms" for name, time in taken.items())
        print(f"{turn}: {times}", file=sys.stderr, flush=True)


def _make(config: str, changes: list[str], mechanism: str) -> tuple[ClusterFormer, Task]:
    from clusterformer.cli.options import make_model_and_task

    chosen = [] if mechanism == "configured" else ["--model.attention", mechanism]
    return make_model_and_task(["--config", config, *changes, *chosen])
