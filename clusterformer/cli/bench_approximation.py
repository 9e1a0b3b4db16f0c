"""`clusterformer bench approximation`: error and time of mechanisms against full attention."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from clusterformer.cli.bench_options import BenchArguments
from clusterformer.cli.bench_report import report_each
from clusterformer.errors import InputError
from clusterformer.wording import counted

if TYPE_CHECKING:
    from clusterformer.bench.recording import Inputs

HELP = """
usage: clusterformer bench approximation --model DIR --text FILE [options]

Compare mechanisms with full attention on the queries, keys and values that a trained model computes
for a text, layer by layer. Show the relative squared error as the mean over the layers, and the
time of all layers, forward and backward.

  --model DIR           directory of a Hugging Face encoder, or run directory of a language model;
                        its heads that have a window are left out
  --text FILE           plain text, also .gz
  --mechanisms NAME ... classes of mechanisms without weights (default: MultipoleAttention
                        ClusteredAttention ImprovedClusteredAttention)
  --length 512          tokens per sequence;  --texts 4, sequences taken from the text
  --num_clusters 32 64 128
                        numbers of clusters, of mechanisms that have them
  --iterations 1 3 5    iterations of k-means, of multipole attention; with the middle of both
                        options it is also measured without each of its parts
  --caps 1.5 2 4        its largest clusters, as multiples of their mean size, each with all
                        iterations (default: 1.5, 2 and 4 with 1, 3 and 5 iterations, else 4)
  --causal              causal forms, of a language model; bidirectional by default
  --block_size N        tokens that multipole attention sees exactly, if causal (default: half of
                        the length, as in its paper)
  --repeats 7           measurements of the time
  --threads N           CPU threads (default: all cores)
  --out FILE.json       write all measurements
"""


def run(arguments: list[str]) -> None:
    """Record, measure errors and times, print the table, write the JSON."""
    options = _parse(arguments)
    from clusterformer.bench import approximation

    layers = _record(options)
    if not layers:
        raise InputError(f"{options.model}: each head has a window, there is none to compare")
    options.model, options.text = options.model.name, options.text.name
    forms = [
        form
        for name in options.mechanisms or approximation.DEFAULT[: 1 if options.causal else None]
        for form in approximation.forms_of(
            name, options.num_clusters, options.iterations, options.caps
        )
    ]
    if options.causal:
        block = {"block_size": options.block_size or max(1, options.length // 2)}
        forms = [(n, o | block if n == "MultipoleAttention" else o) for n, o in forms]
    found = approximation.measure(layers, forms, causal=options.causal, repeats=options.repeats)
    for rows in report_each(options, found, layers=len(layers)):
        row = rows[-1]
        if len(rows) == 1:
            print(f"{counted(len(layers), 'layer')}, {options.texts} x {options.length} tokens")
            print(f"{'mechanism':<28}{'error':>8}{'ms':>9}{'of full':>9}  options")
        error, time = row["relative_squared_error"], row["median_ms"]
        chosen = ", ".join(f"{key}={value}" for key, value in row["options"].items())
        numbers = f"{error:>8.4f}{time:>9.1f}{time / rows[0]['median_ms']:>9.2f}"
        print(f"{row['mechanism']:<28}{numbers}  {chosen}", flush=True)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = BenchArguments("mechanisms", "repeats")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_number("--length", default=512)
    parser.add_number("--texts", default=4)
    parser.add_argument("--causal", action="store_true")
    parser.add_number("--block_size", default=None)
    parser.add_number("--num_clusters", nargs="+", default=[32, 64, 128])
    parser.add_number("--iterations", nargs="+", default=[1, 3, 5])
    parser.add_argument("--caps", type=float, nargs="+", default=[])
    options = parser.parse(arguments)
    if not options.text.is_file():
        raise InputError(f"{options.text}: no such file")
    return options


def _record(options: argparse.Namespace) -> list[Inputs]:
    from clusterformer.bench.recording import record_encoder, record_language_model
    from clusterformer.data.tables import read_text

    text = read_text(options.text)
    if (options.model / "config.json").is_file():
        return record_encoder(options.model, text, options.length, options.texts)
    import torch

    from clusterformer.api import load
    from clusterformer.tasks.language_modeling import LanguageModeling

    model = load(options.model, device="cpu")
    if not isinstance(model.task, LanguageModeling):
        kind = type(model.task).__name__
        raise InputError(
            f"{options.model}: a run of {kind}; --model takes a run of LanguageModeling, or an "
            "encoder of Hugging Face"
        )
    generator = model.generator
    tokens = torch.from_numpy(generator.tokenizer.encode_document(text))
    return record_language_model(generator.network, tokens, options.length, options.texts)
