"""`clusterformer bench decode`: time and memory of one further token of a text."""

from __future__ import annotations

from clusterformer.cli.bench_options import BenchArguments
from clusterformer.cli.bench_report import report_each
from clusterformer.errors import InputError

HELP = """
usage: clusterformer bench decode [options]

Measure one further token of a text, by the length of the text: the time of a cached step of one
attention layer, projections included, the size of its cache, and the share of the text that the
token attends to ("keys"). All mechanisms with a strictly causal form take turns.

  --lengths 512 2048 8192
                        tokens read before
  --mechanisms NAME ... classes of mechanisms (default: all that decode)
  --batch 1             texts that are read at a time
  --d_model 256         model width; --num_heads 4
  --repeats 32          steps that are measured; the median counts
  --threads N           CPU threads (default: all cores); with 1 thread CPU time is measured
  --out FILE.json       write all measurements
"""


def run(arguments: list[str]) -> None:
    """Measure, print the table, write the JSON."""
    parser = BenchArguments("mechanisms", "repeats")
    parser.set_defaults(repeats=32)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_number("--batch", default=1)
    parser.add_number("--d_model", default=256)
    parser.add_number("--num_heads", default=4)
    options = parser.parse(arguments)
    if min(options.lengths) < 1:
        raise InputError(f"--lengths must be at least 1, got {min(options.lengths)}")
    from clusterformer.bench import decoding
    from clusterformer.bench.subjects import choose_mechanisms

    kinds = choose_mechanisms(options.mechanisms)
    for name, kind in kinds.items():
        if options.mechanisms and True not in kind.causal_forms:
            raise InputError(f"{name} has no strictly causal form, so it cannot decode")
    print(f"{'length':>7}  {'mechanism':<28}{'ms':>9}{'cache MiB':>11}{'keys':>8}")
    sizes = {name: getattr(options, name) for name in ("batch", "d_model", "num_heads", "repeats")}
    for *_, row in report_each(options, decoding.measure(kinds, options.lengths, **sizes)):
        time, size = row["step_ms"], row["cache_mib"]
        seen = "-" if row["keys_seen"] is None else f"{row['keys_seen']:.3g}"
        figures = f"{time:>9.3f}{size:>11.2f}{seen:>8}"
        print(f"{row['length']:>7}  {row['mechanism']:<28}{figures}", flush=True)
