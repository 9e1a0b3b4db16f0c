"""`clusterformer bench kernels`: operations and mechanisms against full attention."""

from __future__ import annotations

import argparse

from clusterformer.bench.report import Row
from clusterformer.bench.roofline import DATA_SHEETS, FORMS, predict
from clusterformer.cli.bench_options import BenchArguments
from clusterformer.cli.bench_report import finish_report, report_each, save_plot
from clusterformer.errors import InputError

HELP = """
usage: clusterformer bench kernels [options]
       clusterformer bench kernels --predict h200 [options]

Measure each operation, each form of neural clustering (paper; neural: the default; strict: causal),
Reformer and Routing on the same kernels, clustering included, and full attention by every
scaled-dot-product backend and by flex_attention. Show milliseconds, GB/s, TFLOP/s and the share of
the rates that a copy and a matrix product reach in the same run. Results are checked first; wrong
ones are not timed.

  --lengths 1024 ... 65536  tokens per sequence
  --tokens 131072       tokens per batch
  --num_heads 8         heads, each of --width 64
  --forms paper neural strict
                        forms of neural clustering (default: all)
  --dtype bf16          fp32, bf16 or fp16
  --device cuda         cuda or cpu
  --repeats 7           measurements of each
  --predict DEVICE      measure nothing; show lower bounds of the time from the data sheet of an
                        a100, h100 or h200
  --out FILE.json       write all measurements, and a plot to FILE.png
"""

LENGTHS = [1024, 2048, 4096, 8192, 16384, 32768, 65536]
ROW = "{:>7}  {:<7}{:<18}{:<17}"


def run(arguments: list[str]) -> None:
    """Measure or predict, print the table, write JSON and plot."""
    options = _parse(arguments)
    if options.predict:
        _predict(options)
    else:
        _measure(options)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = BenchArguments("dtype", "repeats")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_number("--tokens", default=131072)
    parser.add_number("--num_heads", default=8)
    parser.add_number("--width", default=64)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--predict", choices=DATA_SHEETS)
    parser.set_defaults(dtype="bf16")
    options = parser.parse(arguments)
    if min(options.lengths) < 1 or max(options.lengths) > options.tokens:
        raise InputError(f"--lengths must be in 1..--tokens ({options.tokens})")
    if not options.predict and options.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise InputError("there is no CUDA device: --device cpu, or --predict h200")
    return options


def _predict(options: argparse.Namespace) -> None:
    print(f"prediction from the data sheet of {options.predict}: nothing here was measured")
    print(f"{'length':>7}  {'form':<8}{'least ms':>10}{'full attention':>16}{'ratio':>8}")
    sizes = options.lengths, options.tokens, options.num_heads, options.width
    rows = list(predict(options.predict, *sizes))
    for row in rows:
        print(
            f"{row['length']:>7}  {row['form']:<8}{row['least_ms']:>10.3f}"
            f"{row['full_least_ms']:>16.3f}{row['ratio']:>8.2f}"
        )
    finish_report(options, rows, predicted=options.predict)


def _measure(options: argparse.Namespace) -> None:
    from clusterformer.bench import kernels, plots

    ceilings = kernels.measure_ceilings(options.device, options.dtype)
    print(f"copy: {ceilings.memory / 1e9:.0f} GB/s; product: {ceilings.matrix / 1e12:.2f} TFLOP/s")
    print(ROW.format("length", "form", "what", "direction") + "       ms    GB/s TFLOP/s  share")
    rows: list[Row] = []
    names = ("tokens", "num_heads", "width", "dtype", "device", "repeats")
    sizes = {name: getattr(options, name) for name in names}
    rates = {"copy_gb_s": ceilings.memory / 1e9, "matrix_tflop_s": ceilings.matrix / 1e12}
    measured = kernels.measure(options.lengths, options.forms, ceilings, **sizes)
    for rows in report_each(options, measured, **rates):
        print(_line(rows[-1]), flush=True)
    if options.out:
        heads = f"{options.num_heads} heads of {options.width}"
        title = f"{options.tokens:,} tokens, {heads}, {options.dtype}, {options.device}"
        save_plot(plots.plot_kernels, options, rows, title)
    if wrong := [row["what"] for row in rows if not row["correct"]]:
        raise InputError(f"wrong results, not timed: {', '.join(sorted(set(wrong)))}")


def _line(row: Row) -> str:
    head = ROW.format(row["length"], row["form"], row["what"], row["direction"])
    if not row["correct"]:
        return f"{head}WRONG: error {row['error']:.2g}, allowed {row['error_limit']:.2g}"
    numbers = f"{row['median_ms']:>9.3f}{row['gb_s']:>8.0f}{row['tflop_s']:>8.2f}"
    return f"{head}{numbers}{row['share']:>7.1%}"
