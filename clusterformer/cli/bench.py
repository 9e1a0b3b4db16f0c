"""`clusterformer bench`: time and memory of attention layers, side by side."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from clusterformer.cli.bench_options import BenchArguments
from clusterformer.cli.bench_report import print_times, report_each, save_plot
from clusterformer.errors import InputError
from clusterformer.wording import counted

if TYPE_CHECKING:
    from clusterformer.bench.report import Row

HELP = """
usage: clusterformer bench [options]
       clusterformer bench steps --config FILE [options]
       clusterformer bench regret [--shapes 40] [options]
       clusterformer bench profile [options]
       clusterformer bench compile [--targets sm_80 sm_90 gfx942] [--out FILE]
       clusterformer bench kernels [--predict h200] [options]
       clusterformer bench causality [options]
       clusterformer bench decode [options]
       clusterformer bench parallel [options]
       clusterformer bench pairs [--pairs 200000] [--out FILE]
       clusterformer bench pretrained --model DIR --pairs FILE.tsv [options]
       clusterformer bench converted --model DIR --text FILE --calibrate FILE [options]
       clusterformer bench approximation --model DIR --text FILE [options]
       clusterformer bench exchange --runs RUN ... [options]
       clusterformer bench mass --reference RUN --runs RUN ... [options]

Measure attention layers, projections and clustering included: the time of forward, and of forward
and backward; the peak memory in a fresh process; and "x floor", the time divided by that of the
same operations as one matrix product. "keys" is the share of its text that a token attends to; time
at another share is another amount of work. All layers take turns; the table shows medians.

  --lengths 512 1024 2048 4096 8192
                        tokens per sequence
  --tokens 8192         tokens per batch; or --batch N, sequences per batch at every length
  --d_model 256         model width; --num_heads 4
  --num_clusters K      clusters of every mechanism that has them (default: for blocks of 64 in the
                        paper's form, and windows of 64 in routing; else the mechanism's own)
  --mechanisms NAME ... layers to measure (default: all): the class of a mechanism, a form of neural
                        clustering (paper: two blocks, no coupling; neural: the default), or a
                        public package: reformer-pytorch, routing-transformer,
                        fast-transformers-clustered, fast-transformers-improved; or your own class,
                        installed or in the current folder: mypackage.MyAttention;
                        or a name of the paper on clustered attention: full, shared-full, lsh-4
                        (rounds), clustered-100, i-clustered-100 (clusters), oracle-top;
                        each also as NAME-compiled, by torch.compile
  --causal              measure the strictly causal forms
  --no-output           leave out the output projection
  --layers N            measure N encoder layers instead of one attention layer; --d_ff 4*d_model
  --device cpu          cpu or cuda;  --dtype fp32, bf16 or fp16: autocast
  --repeats 7           measurements of each layer
  --threads N           CPU threads (default: all cores); with 1 thread CPU time is measured, which
                        other work on the machine lengthens less than wall-clock time
  --limit SECONDS       leave out a layer at longer lengths once its step took longer than this
  --no-memory           do not measure memory
  --out FILE.json       write all measurements, each as it comes, and a plot to FILE.png

Each subcommand has its own help, such as: clusterformer bench kernels --help
"""

SUBCOMMANDS = (
    "steps",
    "regret",
    "profile",
    "compile",
    "kernels",
    "causality",
    "decode",
    "parallel",
    "pairs",
    "pretrained",
    "converted",
    "approximation",
    "exchange",
    "mass",
)
"""Each is a file of this package, bench_NAME, with HELP and `run(arguments)`."""


def run(arguments: list[str]) -> None:
    """Measure, print the table, write JSON and plot."""
    options = _parse(arguments)
    from clusterformer.bench import mechanisms, plots
    from clusterformer.bench.subjects import DTYPES, Setting, check_layers
    from clusterformer.bench.timing import matmul_rate
    from clusterformer.devices import find_device

    find_device(options.device)
    settings = [
        Setting(
            length=length,
            tokens=options.batch * length if options.batch else options.tokens,
            d_model=options.d_model,
            num_heads=options.num_heads,
            num_clusters=options.num_clusters,
            causal=options.causal,
            output=options.output,
            layers=options.layers,
            d_ff=options.d_ff,
            dtype=options.dtype,
            device=options.device,
        )
        for length in sorted(options.lengths)
    ]
    check_layers(options.mechanisms or [], settings[0])
    rate = matmul_rate(options.device, DTYPES[options.dtype])
    print(f"matrix product: {rate / 1e9:.0f} GFLOP/s")
    measured = mechanisms.measure(
        settings,
        options.mechanisms,
        peak_rate=rate,
        repeats=options.repeats,
        memory=options.memory,
        limit=options.limit,
    )
    rows: list[Row] = []
    for rows in report_each(options, measured, matmul_gflops=rate / 1e9):
        print_times(rows[-1], rows)
    if not rows:
        raise InputError("no layer could run; the lines above say why")
    if options.out:
        stack = counted(options.layers, "encoder layer")
        layer = stack if options.layers else "Attention layer"
        title = f"{layer}, width {options.d_model}, {options.dtype}, {options.device}"
        save_plot(plots.plot_mechanisms, options, rows, title)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = BenchArguments("mechanisms", "dtype", "repeats", "memory")
    lengths = [512, 1024, 2048, 4096, 8192]
    parser.add_argument("--lengths", type=int, nargs="+", default=lengths)
    parser.add_number("--tokens", default=8192)
    parser.add_number("--batch")
    parser.add_number("--limit", type=float, minimum=0)
    parser.add_number("--d_model", default=256)
    parser.add_number("--num_heads", default=4)
    parser.add_number("--num_clusters", minimum=0)
    parser.add_argument("--causal", action="store_true")
    parser.add_number("--layers", minimum=0, default=0)
    parser.add_number("--d_ff", minimum=0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--no-output", dest="output", action="store_false")
    options = parser.parse(arguments)
    longest = float("inf") if options.batch else options.tokens
    if min(options.lengths) < 1 or max(options.lengths) > longest:
        raise InputError(f"--lengths must be in 1..--tokens ({options.tokens})")
    return options
