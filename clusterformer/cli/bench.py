"""`clusterformer bench`: time and memory of mechanisms, measured side by side in one run."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from clusterformer.errors import InputError

if TYPE_CHECKING:
    import torch

    from clusterformer.attention import AttentionCore

HELP = """
usage: clusterformer bench [options]

Time the attention layer, projections and clustering included, forward and backward, and the peak
memory it takes in a fresh process. All mechanisms take turns in one run; the table shows medians.

  --lengths 512 1024 2048 4096 8192
                        tokens a sequence
  --tokens 8192         tokens a batch
  --d_model 256         width; --num_heads 4
  --num_clusters K      default: the square root of the length
  --mechanisms FullAttention paper neural strict
                        what to measure: a class by its name, or a form of neural clustering:
                        paper (two blocks, no coupling), neural (the default), strict (causal)
  --no-output           leave out the output projection
  --layers N            a stack of N encoder layers instead of one attention layer; --d_ff 4*d_model
  --config FILE         whole training steps of a configuration instead, optimizer included, on a
                        batch of its longest texts; mechanisms are then "configured" (its own) and
                        classes by name
  --precision bf16      autocast to bfloat16, as --trainer.precision bf16-mixed does
  --repeats 7           measurements of each; --threads N (default: all cores)
  --no-memory           skip the fresh processes
  --out FILE            write everything measured as JSON
"""

FORMS = ("paper", "neural", "strict")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def run(arguments: list[str]) -> None:
    """Measure, print the table, write the JSON."""
    import torch

    options = _parse(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    rows = []
    for length in options.lengths:
        for row in _measure(options, length):
            rows.append(row)
            _show(row, rows)
    if options.out:
        _write(options, rows)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = _Parser(prog="clusterformer bench", add_help=False, allow_abbrev=False)
    lengths = [512, 1024, 2048, 4096, 8192]
    parser.add_argument("--lengths", type=int, nargs="+", default=lengths)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--d_model", type=int, default=256)
    parser.add_argument("--num_heads", type=int, default=4)
    parser.add_argument("--num_clusters", type=int)
    parser.add_argument("--mechanisms", nargs="+")
    parser.add_argument("--config")
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--d_ff", type=int)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--no-memory", dest="memory", action="store_false")
    parser.add_argument("--no-output", dest="output", action="store_false")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if options.config:
        options.lengths = [0]  # those of the data
    mine = ["configured"] if options.config else FORMS[:2]
    options.mechanisms = options.mechanisms or ["FullAttention", *mine]
    for name in ("tokens", "d_model", "num_heads", "repeats"):
        if getattr(options, name) < 1:
            raise InputError(f"--{name} must be at least 1, got {getattr(options, name)}")
    if (not options.config and min(options.lengths) < 1) or max(options.lengths) > options.tokens:
        raise InputError(f"--lengths must be in 1..--tokens ({options.tokens})")
    return options


def _core(name: str, options: argparse.Namespace, length: int) -> AttentionCore:
    from inspect import signature

    from clusterformer import attention

    extra: dict[str, Any] = {}
    if name in FORMS:
        extra = {"paper": attention.PAPER_FORM, "strict": {"causal": True}}.get(name, {})
        name = "NeuralClusteringAttention"
    kinds = {kind.__name__: kind for kind in attention.mechanisms()}
    if name not in kinds:
        raise InputError(f"no mechanism {name!r}; there are {', '.join([*kinds, *FORMS])}")
    kind = kinds[name]
    if "num_clusters" in signature(kind).parameters:
        extra = {**extra, "num_clusters": options.num_clusters or max(1, int(length**0.5))}
    return kind(options.d_model, options.num_heads, **extra)


Step = tuple[Callable[[], None], tuple[int, int]]
"""What to time, and the shape of its batch: texts, tokens a text."""


def _step(name: str, options: argparse.Namespace, length: int) -> Step:
    """A function that runs forward and backward once."""
    import torch

    low = torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bf16")
    if options.config:
        return _training_step(name, options.config, low)

    from clusterformer.attention import MultiHeadAttention
    from clusterformer.models.transformer import Encoder

    batch = options.tokens // length
    x = torch.randn(batch, length, options.d_model, requires_grad=True)
    gradient = torch.randn(batch, length, options.d_model)
    if options.layers:
        cores = [_core(name, options, length) for _ in range(options.layers)]
        encoder = Encoder(cores, d_ff=options.d_ff or 4 * options.d_model, dropout=0.0)
        return lambda: low(encoder)(x).hidden.backward(gradient), (batch, length)
    layer = MultiHeadAttention(_core(name, options, length))
    if not options.output:
        layer.out_proj = torch.nn.Identity()  # type: ignore[assignment]
    return lambda: low(layer)(x).values.backward(gradient), (batch, length)


def _training_step(name: str, config: str, low: torch.autocast) -> Step:
    """A function that trains one step on a batch of the configuration's longest texts."""
    import torch

    from clusterformer.cli.options import Options

    chosen = [] if name == "configured" else ["--model.attention", name]
    parsed = Options(["--config", config, *chosen], fitting=True)
    task, model = parsed.datamodule, parsed.model
    task.prepare_data()
    task.setup("fit")
    model.network = task.build(model.architecture)
    batch = max(task.train_dataloader(), key=lambda batch: batch.tokens.shape[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=model.lr, fused=True)

    def step() -> None:
        with low:
            parts = model.objective(task, batch).values()
        optimizer.zero_grad()
        torch.stack([weight * total / count for total, count, weight in parts]).sum().backward()
        optimizer.step()

    return step, tuple(batch.tokens.shape)


def _measure(options: argparse.Namespace, length: int) -> list[dict[str, Any]]:
    steps = {name: _step(name, options, length) for name in options.mechanisms}
    samples: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(-2, options.repeats):  # two turns to warm up
        for name, (step, _) in steps.items():
            begun = time.perf_counter()
            step()
            if turn >= 0:
                samples[name].append((time.perf_counter() - begun) * 1e3)
    return [
        {
            "mechanism": name,
            "length": steps[name][1][1],
            "batch": steps[name][1][0],
            "median_ms": statistics.median(times),
            "samples_ms": times,
            "peak_mib": _peak(name, options, length) if options.memory else None,
        }
        for name, times in samples.items()
    ]


def _peak(name: str, options: argparse.Namespace, length: int) -> float:
    """Growth of the resident set over one step, MiB, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_report_peak, args=(theirs, name, options, length))
    process.start()
    theirs.close()
    try:
        return float(ours.recv())
    finally:
        process.join()


def _report_peak(pipe: Any, name: str, options: argparse.Namespace, length: int) -> None:
    small = argparse.Namespace(**vars(options) | {"tokens": 64, "config": None})
    for known in ("FullAttention", "neural"):
        _step(known, small, 64)[0]()  # libraries and thread pools are not the mechanism's
    step, _ = _step(name, options, length)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM starts anew
    before = _resident("VmRSS")
    step()
    pipe.send((_resident("VmHWM") - before) / 1024)


def _resident(field: str) -> int:
    """Memory of this process in KiB: VmRSS now, VmHWM at its highest.

    Not getrusage: its highest starts from that of the parent process.
    """
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise InputError(f"/proc/self/status has no {field}; use --no-memory")


def _show(row: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    if len(rows) == 1:
        print(f"{'length':>7}  {'mechanism':<28}{'ms':>9}{'of full':>9}{'MiB':>9}")
    full = [
        r["median_ms"]
        for r in rows
        if r["length"] == row["length"] and r["mechanism"] == "FullAttention"
    ]
    share = f"{row['median_ms'] / full[0]:.2f}" if full else "-"
    peak = "-" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}"
    print(
        f"{row['length']:>7}  {row['mechanism']:<28}{row['median_ms']:>9.1f}{share:>9}{peak:>9}",
        flush=True,
    )


def _write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    import torch

    from clusterformer.cli.runs import describe_environment

    settings = {k: v for k, v in vars(options).items() if k != "out"}
    settings["threads"] = torch.get_num_threads()
    environment = describe_environment()
    del environment["folder"]  # a report travels; where it was made is nobody's business
    report = {"environment": environment, "settings": settings, "rows": rows}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"written: {options.out}")
