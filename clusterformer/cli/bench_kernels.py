"""`clusterformer bench kernels`: operations and mechanisms against full attention."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from clusterformer.bench.roofline import DATA_SHEETS, FORMS, Ceilings, Work, predict, size_of
from clusterformer.cli.bench import Parser, require_positive, write
from clusterformer.errors import InputError

if TYPE_CHECKING:
    from clusterformer.bench.problems import Problem, Timed

HELP = """
usage: clusterformer bench kernels [--predict h200] [options]

Times each operation and each form of neural clustering (paper, neural: the default, strict:
causal), Reformer and Routing on the same kernels, clustering included, against every
scaled-dot-product backend and flex_attention: milliseconds, GB/s, TFLOP/s, and the share of what a
copy and a matrix product reach in that run. Results are checked first; a wrong one is not timed.
--lengths 1024 ... 65536, --tokens 131072, --num_heads 8, --width 64, --dtype bf16, --device cuda;
--forms, --repeats, --out FILE.json (and FILE.png). --predict a100, h100 or h200 measures nothing:
it says the least time that the data sheet allows.
"""

LENGTHS = [1024, 2048, 4096, 8192, 16384, 32768, 65536]
ROW = "{:>7}  {:<7}{:<18}{:<17}"


def run(arguments: list[str]) -> None:
    """Measure or predict, print the table, write JSON and plot."""
    options = _parse(arguments)
    rows = []
    if options.predict:
        print(f"prediction from the data sheet of {options.predict}: nothing here was measured")
        print(f"{'length':>7}  {'form':<8}{'least ms':>10}{'full attention':>16}{'ratio':>8}")
        sizes = options.lengths, options.tokens, options.num_heads, options.width
        for row in predict(options.predict, *sizes):
            rows.append(row)
            print(
                f"{row['length']:>7}  {row['form']:<8}{row['least_ms']:>10.3f}"
                f"{row['full_least_ms']:>16.3f}{row['ratio']:>8.2f}"
            )
        if options.out:
            write(options, rows, predicted=options.predict)
        return
    ceilings = _ceilings(options)
    print(f"copy: {ceilings.memory / 1e9:.0f} GB/s; product: {ceilings.matrix / 1e12:.2f} TFLOP/s")
    print(ROW.format("length", "form", "what", "direction") + "       ms    GB/s TFLOP/s  share")
    for length in options.lengths:
        for form in options.forms:
            for row in _measure(options, form, length, ceilings):
                rows.append(row)
                _show(row)
    if options.out:
        write(options, rows, copy_gb_s=ceilings.memory / 1e9, matrix_tflop_s=ceilings.matrix / 1e12)
        _plot(options, rows)
    if wrong := [row["what"] for row in rows if not row["correct"]]:
        raise InputError(f"wrong results, not timed: {', '.join(sorted(set(wrong)))}")


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser()
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--num_heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--predict", choices=DATA_SHEETS)
    parser.set_defaults(dtype="bf16")
    options = parser.parse(arguments)
    require_positive(options, "tokens", "num_heads", "width")
    if min(options.lengths) < 1 or max(options.lengths) > options.tokens:
        raise InputError(f"--lengths must be in 1..--tokens ({options.tokens})")
    if not options.predict and options.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise InputError("there is no CUDA device: --device cpu, or --predict h200")
    return options


def _ceilings(options: argparse.Namespace) -> Ceilings:
    """What this device reaches in a copy and in matrix products, measured now."""
    import torch

    from clusterformer.bench.clock import copy_rate, matmul_rate
    from clusterformer.bench.subjects import DTYPES

    product = matmul_rate(options.device, DTYPES[options.dtype])
    plain = matmul_rate(options.device, torch.float32)
    return Ceilings(copy_rate(options.device), product, plain)


def _measure(
    options: argparse.Namespace, form: str, length: int, ceilings: Ceilings
) -> Iterator[dict[str, Any]]:
    """Check everything, then time what is right; all take turns."""
    from clusterformer.bench.clock import take_turns
    from clusterformer.bench.problems import Problem
    from clusterformer.bench.roofline import seconds
    from clusterformer.bench.subjects import DTYPES

    size = size_of(form, length, options.tokens, options.num_heads, options.width)
    problem = Problem(form, size, DTYPES[options.dtype], options.device)
    kept: dict[tuple[str, str], tuple[dict[str, Any], Work]] = {}
    steps: dict[str, Callable[[], object]] = {}
    for what, timed in _subjects(problem):
        common = {"length": length, "batch": size.B, "clusters": size.C, "form": form, "what": what}
        error, limit = timed.check() if timed.check else (None, None)
        correct = error is None or limit is None or error <= limit
        directions = [("forward", timed.forward)]
        if timed.both:
            directions.append(("forward+backward", timed.both))
        for (direction, step), work in zip(directions, timed.work, strict=False):
            row: dict[str, Any] = {
                **common,
                "direction": direction,
                "correct": correct,
                "error": error,
            }
            row |= {"error_limit": limit, "bytes": work.bytes, "flop": work.matrix + work.plain}
            kept[what, direction] = row, work
            if correct:
                steps[f"{what}|{direction}"] = step
    samples = take_turns(steps, options.repeats, options.device)
    for (what, direction), (row, work) in kept.items():
        if row["correct"]:
            times = samples[f"{what}|{direction}"]
            taken = statistics.median(times) * 1e-3
            row |= {"median_ms": taken * 1e3, "samples_ms": times}
            row |= {"gb_s": work.bytes / taken / 1e9, "tflop_s": row["flop"] / taken / 1e12}
            row |= {"share": seconds(work, ceilings) / taken}
        yield row


def _subjects(problem: Problem) -> Iterator[tuple[str, Timed]]:
    """Operations, mechanisms, and each full attention that runs here."""
    from clusterformer.bench.problems import BACKENDS, RIVALS

    yield from problem.operations().items()
    yield "mechanism", problem.mechanism()
    if problem.form != "neural":  # beside the form with as many blocks seen
        for name in RIVALS:
            yield name, problem.rival(name)
    for backend in BACKENDS:
        timed = problem.full(backend)
        try:
            timed.forward()
            if timed.both:
                timed.both()
        except RuntimeError:
            continue  # PyTorch has none for this device and dtype
        yield f"full, {backend}", timed
    if problem.form == "paper" and problem.q.device.type == "cuda":
        yield "flex_attention", problem.flex()


def _show(row: dict[str, Any]) -> None:
    head = ROW.format(row["length"], row["form"], row["what"], row["direction"])
    if not row["correct"]:
        print(f"{head}WRONG: error {row['error']:.2g}, allowed {row['error_limit']:.2g}")
        return
    numbers = f"{row['median_ms']:>9.3f}{row['gb_s']:>8.0f}{row['tflop_s']:>8.2f}"
    print(f"{head}{numbers}{row['share']:>7.1%}", flush=True)


def _plot(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print("no plot: pip install 'clusterformer[plots]'")
        return
    from clusterformer.plots.scaling import scaling

    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        operation = row["what"] in ("assign", "sort", "chunk attention")
        if row["correct"] and not operation:
            name = row["form"] if row["what"] == "mechanism" else row["what"]
            name += " causal" if row["form"] == "strict" and name != "strict" else ""
            if row["what"] == "mechanism" or row["form"] != "neural":
                panel = panels.setdefault(f"{row['direction']}, ms", {})
                panel.setdefault(name, []).append((row["length"], row["median_ms"]))
    heads = f"{options.num_heads} heads of {options.width}"
    title = f"{options.tokens:,} tokens, {heads}, {options.dtype}, {options.device}"
    scaling(panels, options.out.with_suffix(".png"), title=title)
    print(f"written: {options.out.with_suffix('.png')}")
