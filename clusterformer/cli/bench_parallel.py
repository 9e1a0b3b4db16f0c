"""`clusterformer bench parallel`: one long sequence over several processes."""

from __future__ import annotations

from clusterformer.cli.bench_options import BenchArguments
from clusterformer.cli.bench_report import report_each
from clusterformer.errors import InputError

HELP = """
usage: clusterformer bench parallel [options]

Measure forward and backward of one attention layer whose sequence several processes share, against
one process: the largest difference, the memory of a process, the bytes that it sends beside those
that ring attention would send, and the time. Each process has one thread; on one machine the
processes share its cores and its memory bus.

  --processes 2         processes that share a sequence
  --length 32768        tokens of the sequence
  --num_clusters 256    clusters, and blocks, of neural clustering
  --full                measure full attention by an all-to-all over heads too; the processes must
                        divide the heads
  --causal              measure the strictly causal forms
  --d_model 128         model width; --num_heads 4
  --repeats 3           steps that are measured
  --out FILE.json       write all measurements
  --predict             measure nothing: model the time on up to 1,024 GPUs by bytes and operations,
                        beside ring attention and DeepSpeed-Ulysses (docs/results/parallel.md)
"""


def run(arguments: list[str]) -> None:
    """Measure, print the table, write the JSON."""
    parser = BenchArguments("repeats")
    parser.set_defaults(repeats=3, threads=1)
    parser.add_number("--processes", default=2)
    parser.add_number("--length", default=32768)
    parser.add_number("--d_model", default=128)
    parser.add_number("--num_heads", default=4)
    parser.add_number("--num_clusters", default=256)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--predict", action="store_true")
    options = parser.parse(arguments)
    if options.threads != 1:
        raise InputError(f"--threads must be 1, that of each process, got {options.threads}")
    if options.predict:
        if options.out:
            raise InputError("--out writes measurements, and --predict makes none")
        _print_prediction()
        return
    if options.full and options.num_heads % options.processes:
        sizes = f"{options.processes} and {options.num_heads}"
        raise InputError(f"--processes must divide --num_heads with --full, got {sizes}")
    from clusterformer.bench.sequence_parallel import MECHANISMS, ParallelSetting, measure

    setting = {
        name: getattr(options, name)
        for name in ("length", "d_model", "num_heads", "num_clusters", "causal", "repeats")
    }
    print(f"{'':<18}{'difference':>11}{'peak MiB':>10}{'of one':>8}{'sent MiB':>10}", end="")
    print(f"{'ring MiB':>10}{'seconds':>9}{'of one':>8}")
    measured = (
        measure(ParallelSetting(mechanism, **setting), options.processes)
        for mechanism in MECHANISMS[: 1 + options.full]
    )
    for rows in report_each(options, measured):
        row = rows[-1]
        ratio = "-" if row["peak_ratio"] is None else f"{row['peak_ratio']:.2f}"
        print(
            f"{row['mechanism']:<18}{row['largest_difference']:>11.1e}{row['peak_mib']:>10.0f}"
            f"{ratio:>8}{row['sent_mib']:>10.1f}{row['ring_mib']:>10.1f}"
            f"{row['seconds']:>9.2f}{row['seconds'] / row['seconds_alone']:>8.2f}",
            flush=True,
        )


def _print_prediction() -> None:
    from clusterformer.bench.parallel_cost import table

    columns = ("GPUs", "tokens of each", "tokens", "GB/s", "ring ms", "Ulysses ms", "clusters ms")
    for row in (columns, *table((512, 8192), (8, 32, 128, 1024), (25, 50, 400))):
        print("  ".join(f"{cell:>14}" for cell in row).rstrip())
