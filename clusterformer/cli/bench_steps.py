"""`clusterformer bench steps`: whole training steps of a configuration."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

from clusterformer.cli.bench import Parser, show, write
from clusterformer.errors import InputError

HELP = """
usage: clusterformer bench steps --config FILE [options]

Times whole training steps of a configuration, optimizer included, on a batch of its longest texts:
--mechanisms configured (its own) and classes by name; --dtype, --repeats, --threads, --no-memory
and --out as above.
"""

Shape = tuple[int, ...]


def run(arguments: list[str]) -> None:
    """Measure, print the table, write the JSON."""
    from clusterformer.bench.clock import take_turns
    from clusterformer.bench.memory import peak

    parser = Parser()
    parser.add_argument("--config")
    parser.set_defaults(mechanisms=["FullAttention", "configured"])
    options = parser.parse(arguments)
    if not options.config:
        raise InputError("bench steps needs --config")
    made = {name: make_step(name, options.config, options.dtype) for name in options.mechanisms}
    samples = take_turns({name: step for name, (step, _) in made.items()}, options.repeats, "cpu")
    rows = []
    for name, times in samples.items():
        memory = None
        if options.memory:
            make = partial(_only_step, name, options.config, options.dtype)
            memory = peak(_warm_up, make, "cpu")
        batch, length = made[name][1]
        rows.append(
            {
                "mechanism": name,
                "length": length,
                "batch": batch,
                "median_ms": statistics.median(times),
                "samples_ms": times,
                "peak_mib": memory,
            }
        )
        show(rows[-1], rows)
    if options.out:
        write(options, rows)


def make_step(name: str, config: str, dtype: str) -> tuple[Callable[[], None], Shape]:
    """A function that trains one step on a batch of the longest texts, and that batch's shape.

    Args:
        name: "configured", or a mechanism's class in its place.
        config: A configuration, as for `fit`.
        dtype: "fp32", "bf16" or "fp16".
    """
    import torch

    from clusterformer.bench.subjects import DTYPES
    from clusterformer.cli.options import Options

    chosen = [] if name == "configured" else ["--model.attention", name]
    parsed = Options(["--config", config, *chosen], fitting=True)
    task, model = parsed.datamodule, parsed.model
    task.prepare_data()
    task.setup("fit")
    model.network = task.build(model.architecture)
    batch = max(task.train_dataloader(), key=lambda batch: batch.tokens.shape[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=model.lr, fused=True)
    low = torch.autocast("cpu", DTYPES[dtype], enabled=dtype != "fp32")

    def step() -> None:
        with low:
            parts = model.objective(task, batch).values()
        optimizer.zero_grad()
        torch.stack([weight * total / count for total, count, weight in parts]).sum().backward()
        optimizer.step()

    return step, tuple(batch.tokens.shape)


def _only_step(name: str, config: str, dtype: str) -> Callable[[], None]:
    return make_step(name, config, dtype)[0]


def _warm_up() -> None:
    from clusterformer.bench.subjects import Setting, make_step

    small = Setting(64, 64, 16, 2, None, False, True, 0, 16, "fp32", "cpu")
    for name in ("FullAttention", "neural"):
        make_step(name, small)()
