"""`clusterformer bench profile`: where the time of one attention layer goes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from clusterformer.cli.bench_options import BenchArguments
from clusterformer.cli.bench_report import finish_report

if TYPE_CHECKING:
    from clusterformer.bench.report import Row

HELP = """
usage: clusterformer bench profile [options]

List the operations of PyTorch in one step of an attention layer, forward and backward on the CPU,
by the time that they take themselves. The profiler lengthens steps of many small operations.

  --mechanisms NAME ... layers, as for bench (default: neural)
  --length 2048         tokens per sequence
  --tokens 8192         tokens per batch
  --d_model 256         model width; --num_heads 4
  --dtype fp32          fp32, bf16 or fp16: autocast
  --top 20              number of operations to print
  --repeats 7           steps
  --threads N           CPU threads (default: all cores)
  --out FILE.json       write all operations
"""


def run(arguments: list[str]) -> None:
    """Profile, print the tables, write the JSON."""
    parser = BenchArguments("mechanisms", "dtype", "repeats")
    parser.set_defaults(mechanisms=["neural"])
    parser.add_number("--length", default=2048)
    parser.add_number("--tokens", default=8192)
    parser.add_number("--d_model", default=256)
    parser.add_number("--num_heads", default=4)
    parser.add_number("--top", default=20)
    options = parser.parse(arguments)
    # a level above all: the profiler prints that it starts and stops, as an error
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from clusterformer.bench import profiling
    from clusterformer.bench.subjects import Setting, check_layers

    sizes = {name: getattr(options, name) for name in ("length", "tokens", "d_model", "num_heads")}
    setting = Setting(**sizes, dtype=options.dtype)
    check_layers(options.mechanisms, setting)
    rows: list[Row] = []
    for name in options.mechanisms:
        found = profiling.measure(name, setting, options.repeats)
        print(f"{name:<52}{'ms':>9}{'share':>8}{'calls':>8}")
        for row in found[: options.top]:
            operation = row["operation"][:50]
            print(f"  {operation:<50}{row['ms']:>9.2f}{row['share']:>8.1%}{row['calls']:>8.0f}")
        rows += [{"mechanism": name, **row} for row in found]
    finish_report(options, rows)
