"""`clusterformer bench`: time and memory of mechanisms, side by side in one run."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Container, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterformer.cli.arguments import Arguments
from clusterformer.errors import InputError

if TYPE_CHECKING:
    from clusterformer.attention import AttentionCore
    from clusterformer.bench.subjects import Setting

HELP = """
usage: clusterformer bench [options]
       clusterformer bench steps --config FILE [options]
       clusterformer bench compile [--targets sm_80 sm_90 gfx942] [--out FILE]
       clusterformer bench kernels [--predict h200] [options]
       clusterformer bench causality [options]
       clusterformer bench pairs [--pairs 200000] [--out FILE]
       clusterformer bench pretrained --model FOLDER --pairs FILE.tsv [options]
       clusterformer bench approximation --model FOLDER --text FILE [options]

Time the attention layer, projections and clustering included, forward, and forward and backward;
the peak memory it takes in a fresh process; and how far it is from the time that its operations
alone would take as one matrix product. All take turns in one run; the table shows medians.

  --lengths 512 1024 2048 4096 8192
                        tokens a sequence
  --tokens 8192         tokens a batch; or --batch N, sequences a batch at every length
  --d_model 256         width; --num_heads 4
  --num_clusters K      of all who have them (default: the square root of the length for neural
                        clustering, windows of 64 for routing, else the mechanism's own)
  --mechanisms NAME ... what to measure (default: all): a class by its name, a form of neural
                        clustering (paper: two blocks, no coupling; neural: the default), or a
                        public package: reformer-pytorch, routing-transformer,
                        fast-transformers-clustered, fast-transformers-improved
  --causal              strictly causal forms
  --no-output           leave out the output projection
  --layers N            a stack of N encoder layers instead of one attention layer; --d_ff 4*d_model
  --device cpu          or cuda;  --dtype fp32, bf16 or fp16: autocast
  --repeats 7           measurements of each
  --threads N           default: all cores; with one, what is measured is its CPU time, which other
                        work on the machine lengthens less
  --limit SECONDS       leave out whose step took longer from the next length on
  --no-memory           skip the fresh processes
  --out FILE.json       write everything measured, and beside it a plot, FILE.png

Each of the others says more by itself: clusterformer bench kernels --help
"""

SUBCOMMANDS = (
    "steps",
    "compile",
    "kernels",
    "causality",
    "pairs",
    "pretrained",
    "approximation",
)
"""Each is a file of this folder, bench_NAME, with HELP and `run(arguments)`."""


WARM_UP = 128
"""Tokens of what a fresh process runs first; the packages want more than their 100 clusters."""


class Parser(Arguments):
    """Options that `bench` and its subcommands share."""

    def __init__(self) -> None:
        super().__init__("bench")
        self.add_argument("--mechanisms", nargs="+")
        self.add_argument("--dtype", choices=["fp32", "bf16", "fp16"], default="fp32")
        self.add_argument("--repeats", type=int, default=7)
        self.add_argument("--threads", type=int)
        self.add_argument("--no-memory", dest="memory", action="store_false")
        self.add_argument("--out", type=Path)

    def parse(self, arguments: list[str]) -> argparse.Namespace:
        """Parse, and set the number of threads."""
        import torch

        options = self.parse_args(arguments)
        for name, value in vars(options).items():
            least = 1 if name == "repeats" else 0
            if isinstance(value, int | float) and value < least:
                raise InputError(f"--{name} must be at least {least}, got {value}")
        if options.threads:
            torch.set_num_threads(options.threads)
        return options


def run(arguments: list[str]) -> None:
    """Measure, print the table, write JSON and plot."""
    options = _parse(arguments)
    from clusterformer.bench.clock import matmul_rate
    from clusterformer.bench.subjects import DTYPES

    rate = matmul_rate(options.device, DTYPES[options.dtype])
    print(f"matrix product: {rate / 1e9:.0f} GFLOP/s")
    rows: list[dict[str, Any]] = []
    slow: set[str] = set()
    for length in options.lengths:
        for row in _measure(options, length, rate, slow):
            rows.append(row)
            show(row, rows)
            if options.limit and row["median_ms"] > 1e3 * options.limit:
                slow.add(row["mechanism"])
    if options.out:
        write(options, rows, matmul_gflops=rate / 1e9)
        _plot(options, rows)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser()
    lengths = [512, 1024, 2048, 4096, 8192]
    parser.add_argument("--lengths", type=int, nargs="+", default=lengths)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--limit", type=float)
    parser.add_argument("--d_model", type=int, default=256)
    parser.add_argument("--num_heads", type=int, default=4)
    parser.add_argument("--num_clusters", type=int)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--d_ff", type=int)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--no-output", dest="output", action="store_false")
    options = parser.parse(arguments)
    require_positive(options, "tokens", "batch", "d_model", "num_heads")
    longest = float("inf") if options.batch else options.tokens
    if min(options.lengths) < 1 or max(options.lengths) > longest:
        raise InputError(f"--lengths must be in 1..--tokens ({options.tokens})")
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: there is no CUDA device")
    return options


def require_positive(options: argparse.Namespace, *names: str) -> None:
    """Refuse numbers below 1; None stands for a default."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InputError(f"--{name} must be at least 1, got {value}")


def chosen_mechanisms(names: Sequence[str] | None) -> dict[str, type[AttentionCore]]:
    """Classes of mechanisms by name, in the order given; None for all.

    Raises:
        InputError: if there is none of a name.
    """
    from clusterformer import attention

    kinds = {kind.__name__: kind for kind in attention.mechanisms()}
    if unknown := set(names or ()) - set(kinds):
        raise InputError(f"no mechanism {min(unknown)!r}; there are {', '.join(kinds)}")
    return {name: kinds[name] for name in names or kinds}


def _measure(
    options: argparse.Namespace, length: int, rate: float, slow: Container[str]
) -> Iterator[dict[str, Any]]:
    from clusterformer.attention import mechanisms
    from clusterformer.bench.clock import take_turns
    from clusterformer.bench.memory import peak
    from clusterformer.bench.operations import count
    from clusterformer.bench.subjects import FORMS, Subject, make_step

    setting = _setting(options, length)
    kinds = [kind for kind in mechanisms() if not options.causal or True in kind.causal_forms]
    every = [*(kind.__name__ for kind in kinds), *FORMS]
    every.remove("NeuralClusteringAttention")  # that is "neural"
    if options.causal:
        every.remove("paper")  # it leaks
    chosen = [name for name in options.mechanisms or every if name not in slow]
    subjects = {name: Subject(name, setting) for name in chosen}
    forward = take_turns(
        {n: s.forward for n, s in subjects.items()}, options.repeats, options.device
    )
    both = take_turns({n: s.step for n, s in subjects.items()}, options.repeats, options.device)
    for name, subject in subjects.items():
        milliseconds = statistics.median(both[name])
        operations = count(subject.step)
        small = _setting(options, WARM_UP, tokens=WARM_UP)
        memory = None
        if options.memory:
            warm_up = partial(_run, [name, "FullAttention", "neural"], small)
            memory = peak(warm_up, partial(make_step, name, setting), options.device)
        yield {
            "mechanism": name,
            "length": length,
            "batch": max(1, setting.tokens // length),
            "forward_ms": statistics.median(forward[name]),
            "median_ms": milliseconds,
            "forward_samples_ms": forward[name],
            "samples_ms": both[name],
            "peak_mib": memory,
            "gflop": operations / 1e9,
            "times_floor": milliseconds * 1e-3 * rate / operations,
        }


def _setting(options: argparse.Namespace, length: int, tokens: int | None = None) -> Setting:
    from clusterformer.bench.subjects import Setting

    return Setting(
        length=length,
        tokens=tokens or (options.batch * length if options.batch else options.tokens),
        d_model=options.d_model,
        num_heads=options.num_heads,
        num_clusters=options.num_clusters,
        causal=options.causal,
        output=options.output,
        layers=options.layers,
        d_ff=options.d_ff or 4 * options.d_model,
        dtype=options.dtype,
        device=options.device,
    )


def _run(names: list[str], setting: Setting) -> None:
    from clusterformer.bench.subjects import make_step

    for name in names:
        make_step(name, setting)()


COLUMNS = {
    "forward_ms": ("forward", "{:.1f}"),
    "median_ms": ("ms", "{:.1f}"),
    "peak_mib": ("MiB", "{:.0f}"),
    "times_floor": ("x floor", "{:.2f}"),
}


def show(row: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Print a row of the table; `rows` are those until now, this one included."""
    columns = {key: spec for key, spec in COLUMNS.items() if key in row}
    if len(rows) == 1:
        heads = "".join(f"{head:>9}" for head, _ in columns.values())
        print(f"{'length':>7}  {'mechanism':<28}{heads}{'of full':>9}")
    full = [
        r["median_ms"]
        for r in rows
        if r["length"] == row["length"] and r["mechanism"] == "FullAttention"
    ]
    share = f"{row['median_ms'] / full[0]:.2f}" if full else "-"
    cells = "".join(
        f"{'-' if row[key] is None else form.format(row[key]):>9}"
        for key, (_, form) in columns.items()
    )
    print(f"{row['length']:>7}  {row['mechanism']:<28}{cells}{share:>9}", flush=True)


def write(options: argparse.Namespace, rows: list[dict[str, Any]], **measured: float | str) -> None:
    """Write everything measured as JSON."""
    import torch

    from clusterformer.training.environment import describe_environment

    settings = {k: v for k, v in vars(options).items() if k != "out"}
    settings["threads"] = torch.get_num_threads()
    environment = describe_environment()
    del environment["folder"]  # a report travels; where it was made is nobody's business
    report = {"environment": environment, "settings": settings, **measured, "rows": rows}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"written: {options.out}")


def _plot(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print("no plot: pip install 'clusterformer[plots]'")
        return
    from clusterformer.plots.scaling import scaling

    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for title, key, unit in (
        ("time a token, µs", "median_ms", 1e3),
        ("peak memory a token, KiB", "peak_mib", 1024),
    ):
        for row in rows:
            if row[key] is not None:
                value = row[key] * unit / (row["batch"] * row["length"])
                points = panels.setdefault(title, {}).setdefault(row["mechanism"], [])
                points.append((row["length"], value))
    what = f"{options.layers} encoder layers" if options.layers else "Attention layer"
    title = f"{what}, width {options.d_model}, {options.dtype}, {options.device}"
    scaling(panels, options.out.with_suffix(".png"), title=title)
    print(f"written: {options.out.with_suffix('.png')}")
