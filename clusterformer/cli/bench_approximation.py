"""`clusterformer bench approximation`: how near mechanisms come to full attention, and how fast."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterformer.cli.bench import Parser, chosen_mechanisms, require_positive, write
from clusterformer.errors import InputError

if TYPE_CHECKING:
    from clusterformer.attention import AttentionCore
    from clusterformer.bench.recording import Inputs

HELP = """
usage: clusterformer bench approximation --model FOLDER --text FILE [options]

Takes the queries, keys and values that a trained model (a Hugging Face encoder, or the run folder
of a language model) makes of a text, layer by layer. It tells the relative squared error of each
mechanism against full attention on them, bidirectional, mean of the layers, and the time, forward
and backward, of all layers: --mechanisms of those without weights; --length 512, --texts 4;
--num_clusters 32 64 128; of multipole attention --iterations 1 3 5 too, and at the middle of both
what each of its parts contributes; --repeats, --threads, --out.
"""

DEFAULT = ["MultipoleAttention", "ClusteredAttention", "ImprovedClusteredAttention"]
CAPS = {1: 1.5, 3: 2.0, 5: 4.0}
"""Of MuSe's k-means by iterations, in its table 1; 4 beyond."""


def run(arguments: list[str]) -> None:
    """Record, measure errors and times, print the table, write the JSON."""
    from clusterformer.bench import recording
    from clusterformer.bench.clock import take_turns

    options = _parse(arguments)
    names = options.mechanisms or DEFAULT
    kinds = chosen_mechanisms(["FullAttention", *names])
    import torch

    text = options.text.read_text(encoding="utf-8")
    if (options.model / "config.json").is_file():
        layers = recording.of_encoder(options.model, text, options.length, options.texts)
    else:
        from clusterformer.cli.generate import load

        generator = load(str(options.model), "cpu")
        tokens = torch.from_numpy(generator.tokenizer.encode_document(text))
        layers = recording.of_language_model(
            generator.network, tokens, options.length, options.texts
        )
    heads, width = layers[0].q.shape[1], layers[0].q.shape[-1]
    described = [("FullAttention", {}), *(pair for name in names for pair in _forms(name, options))]
    cores = [kinds[name](heads * width, heads, **settings) for name, settings in described]
    if weighted := [core for core in cores if any(True for _ in core.parameters())]:
        raise InputError(f"{type(weighted[0]).__name__} has weights, which this model lacks")
    samples = take_turns(
        {str(at): partial(_step, core, layers) for at, core in enumerate(cores)},
        options.repeats,
        "cpu",
    )
    print(f"{len(layers)} layers, {options.texts} x {options.length} tokens")
    print(f"{'mechanism':<28}{'error':>8}{'ms':>9}{'of full':>9}  options")
    rows: list[dict[str, Any]] = []
    for at, ((name, settings), core) in enumerate(zip(described, cores, strict=True)):
        errors = [_error(core, cores[0], layer) for layer in layers]
        row = {
            "mechanism": name,
            "options": settings,
            "relative_squared_error": statistics.mean(errors),
            "of_layers": errors,
            "median_ms": statistics.median(samples[str(at)]),
            "samples_ms": samples[str(at)],
        }
        rows.append(row)
        share = row["median_ms"] / rows[0]["median_ms"]
        told = ", ".join(f"{key}={value}" for key, value in settings.items())
        print(
            f"{name:<28}{row['relative_squared_error']:>8.4f}{row['median_ms']:>9.1f}{share:>9.2f}"
            f"  {told}",
            flush=True,
        )
    if options.out:
        options.model, options.text = options.model.name, options.text.name
        write(options, rows, layers=len(layers))


def _parse(arguments: list[str]) -> Any:
    parser = Parser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--num_clusters", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--iterations", type=int, nargs="+", default=[1, 3, 5])
    options = parser.parse(arguments)
    if not options.text.is_file():
        raise InputError(f"{options.text}: no such file")
    require_positive(options, "length", "texts")
    return options


def _forms(name: str, options: Any) -> list[tuple[str, dict[str, Any]]]:
    """The settings of one mechanism: for MuSe those of the paper's tables 1 and 3, and beyond."""
    if name != "MultipoleAttention":
        return [(name, {"num_clusters": clusters}) for clusters in options.num_clusters]
    grid = [
        {"num_clusters": clusters, "iterations": iterations, "cap": CAPS.get(iterations, 4.0)}
        for clusters in options.num_clusters
        for iterations in options.iterations
    ]
    middle = grid[len(grid) // 2]
    without = [middle | {part: False} for part in ("dipole", "two_stage", "monopole")]
    damped = middle | {"damped": True}
    exact = [damped | {"exact_clusters": count} for count in (1, 2, 4)]
    return [(name, settings) for settings in (*grid, *without, damped, *exact)]


def _step(core: AttentionCore, layers: list[Inputs]) -> None:
    for layer in layers:
        q, k, v = (x.detach().requires_grad_() for x in layer)
        core(q, k, v, hidden=q)[0].backward(layer.v)


def _error(core: AttentionCore, exact: AttentionCore, layer: Inputs) -> float:
    import torch

    from clusterformer.bench.recording import relative_error

    with torch.no_grad():
        values, full = (one(*layer, hidden=layer.q)[0] for one in (core, exact))
    return relative_error(values, full)
