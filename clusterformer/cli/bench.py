"""`clusterformer bench`: time and memory of attention layers, side by side."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clusterformer.cli.arguments import Arguments, available_device, set_threads
from clusterformer.cli.output import announce_replacement
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


def report_file(name: str) -> Path:
    """Read the path of a report, before anything is measured for it."""
    path = Path(name)
    if path.suffix.lower() == ".png" or path.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file for JSON, got {name}")
    announce_replacement("--out", path)
    return path


class BenchArguments(Arguments):
    """The options that `bench` and most of its subcommands share.

    Args:
        read: Those of "mechanisms", "dtype", "repeats" and "memory" that the command reads; any
            other is refused.
    """

    def __init__(self, *read: Literal["mechanisms", "dtype", "repeats", "memory"]) -> None:
        super().__init__()
        if "mechanisms" in read:
            self.add_argument("--mechanisms", nargs="+")
        if "dtype" in read:
            self.add_argument("--dtype", choices=["fp32", "bf16", "fp16"], default="fp32")
        if "repeats" in read:
            self.add_number("--repeats", default=7)
        if "memory" in read:
            self.add_argument("--no-memory", dest="memory", action="store_false")
        self.add_number("--threads", minimum=0)
        self.add_argument("--out", type=report_file)

    def parse(self, arguments: list[str]) -> argparse.Namespace:
        """Parse, and set the number of threads.

        Raises:
            InputError: if the heads do not divide the width.
        """
        options = self.parse_args(arguments)
        if "d_model" in options and options.d_model % options.num_heads:
            sizes = f"{options.num_heads} and {options.d_model}"
            raise InputError(f"--num_heads must divide --d_model, got {sizes}")
        set_threads(options.threads)
        return options

    def parse_beside(self, arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
        """Parse likewise; the arguments that are no options of these are returned, too."""
        options, rest = self.parse_known_args(arguments)
        set_threads(options.threads)
        return options, rest


def run(arguments: list[str]) -> None:
    """Measure, print the table, write JSON and plot."""
    options = _parse(arguments)
    from clusterformer.bench import mechanisms, plots
    from clusterformer.bench.subjects import DTYPES, Setting, check_layers
    from clusterformer.bench.timing import matmul_rate

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
    rows: list[Row] = []
    for row in mechanisms.measure(
        settings,
        options.mechanisms,
        peak_rate=rate,
        repeats=options.repeats,
        memory=options.memory,
        limit=options.limit,
    ):
        rows.append(row)
        print_times(row, rows)
        keep(options, rows, matmul_gflops=rate / 1e9)
    if not rows:
        raise InputError("no layer could run; the lines above say why")
    if options.out:
        save(options, rows, matmul_gflops=rate / 1e9)
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
    parser.add_argument("--device", type=available_device, default="cpu")
    parser.add_argument("--no-output", dest="output", action="store_false")
    options = parser.parse(arguments)
    longest = float("inf") if options.batch else options.tokens
    if min(options.lengths) < 1 or max(options.lengths) > longest:
        raise InputError(f"--lengths must be in 1..--tokens ({options.tokens})")
    return options


COLUMNS = {
    "forward_ms": ("forward", "{:.1f}"),
    "median_ms": ("ms", "{:.1f}"),
    "attention_ms": ("attention", "{:.1f}"),
    "optimizer_ms": ("optimizer", "{:.1f}"),
    "data_ms": ("data", "{:.1f}"),
    "peak_mib": ("MiB", "{:.0f}"),
    "times_floor": ("x floor", "{:.2f}"),
    "keys_seen": ("keys", "{:.3g}"),
}
"""Key of a row to the heading and format of its column."""


def print_times(row: Row, rows: Sequence[Row]) -> None:
    """Print a row of times and memory, the headings before the first.

    Args:
        row: The row.
        rows: All rows so far, this one included; "of full" compares it with full attention of
            the same length.
    """
    columns = {key: spec for key, spec in COLUMNS.items() if key in row}
    if len(rows) == 1:
        heads = "".join(f"{head:>11}" for head, _ in columns.values())
        print(f"{'length':>7}  {'mechanism':<28}{heads}{'of full':>11}")
    full = [
        r["median_ms"]
        for r in rows
        if r["length"] == row["length"] and r["mechanism"] in ("FullAttention", "full")
    ]
    share = f"{row['median_ms'] / full[0]:.2f}" if full else "-"
    cells = "".join(
        f"{'-' if row[key] is None else form.format(row[key]):>11}"
        for key, (_, form) in columns.items()
    )
    print(f"{row['length']:>7}  {row['mechanism']:<28}{cells}{share:>11}", flush=True)


def kept(
    options: argparse.Namespace, measured: Iterable[Row], **sections: Any
) -> Iterator[list[Row]]:
    """Write each row to `--out` as it comes, and say so behind the last.

    Yields:
        All rows so far, the new one last.
    """
    rows: list[Row] = []
    for row in measured:
        rows.append(row)
        yield rows
        keep(options, rows, **sections)
    save(options, rows, **sections)


def save(options: argparse.Namespace, rows: Sequence[Row], **measured: Any) -> None:
    """Write the report to `--out`, if it is given, with the options as its settings; say so."""
    keep(options, rows, **measured)
    if options.out:
        print(f"written: {options.out}")


def keep(options: argparse.Namespace, rows: Sequence[Row], **measured: Any) -> None:
    """Write the rows so far to `--out`, if it is given: whatever ends the process loses none."""
    if options.out is None:
        return
    import torch

    from clusterformer.bench.report import write_report

    settings = {key: value for key, value in vars(options).items() if key != "out"}
    settings["threads"] = torch.get_num_threads()
    write_report(options.out, rows, settings=settings, **measured)


def save_plot(
    plot: Callable[..., None], options: argparse.Namespace, rows: Sequence[Row], title: str
) -> None:
    """Draw beside `--out`, where matplotlib is installed."""
    path = options.out.with_suffix(".png")
    try:
        plot(rows, path, title=title)
    except ImportError:
        print("no plot: pip install 'clusterformer[plots]'")
    else:
        print(f"written: {path}")
