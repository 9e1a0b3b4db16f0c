"""`clusterformer bench pretrained`: a pretrained encoder under each attention."""

from __future__ import annotations

import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterformer.cli.bench import Parser, chosen_mechanisms, require_positive, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from clusterformer.attention import AttentionCore

HELP = """
usage: clusterformer bench pretrained --model FOLDER --pairs FILE.tsv [options]

Puts each attention into a pretrained Hugging Face encoder, without training it again, and
correlates its similarities of sentence pairs (lines of text, text, score) with people's scores:
--mechanisms of those without weights; --num_clusters 25; --length 128 tokens at most; --join 1,
pairs of like score that make one pair of longer texts; --seeds 1, times that they are joined anew,
with deviations over them; --threads, --out. Needs transformers.
"""

HEADS = f"{'Spearman':>9}{'less full':>18}{'with full':>11}{'seconds':>9}"
DEFAULT = ["ClusteredAttention", "ImprovedClusteredAttention", "MultipoleAttention"]
BEYOND = {
    "ImprovedClusteredAttention": [{"top_k": 64}, {"top_k": 96}],
    "MultipoleAttention": [{"damped": True, "exact_clusters": 2}],
}
"""Options beyond the papers', in rows of their own."""


def run(arguments: list[str]) -> None:
    """Embed the pairs with each attention, print the correlations, write the JSON."""
    from clusterformer import attention
    from clusterformer.bench.similarity import Encoder, rank_correlation, read_pairs, similarities

    parser = Parser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--num_clusters", type=int, default=25)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--join", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse(arguments)
    require_positive(options, "num_clusters", "length", "join", "seeds")
    kinds = chosen_mechanisms(options.mechanisms or DEFAULT)

    import torch

    draws = [read_pairs(options.pairs, options.join, seed) for seed in range(options.seeds)]
    gold = [torch.tensor(pairs.scores) for pairs in draws]
    encoder = Encoder(options.model, options.length)
    own = encoder.model.config._attn_implementation
    full: list[Tensor] = []
    print(f"{len(draws[0].scores)} pairs\n{'attention':<28}{HEADS}")
    rows: list[dict[str, Any]] = []
    forms: list[tuple[str, dict[str, Any]]] = [("FullAttention", {})]
    for name in kinds:
        forms += [(name, settings) for settings in ({}, *BEYOND.get(name, ()))]
    for name, settings in forms:
        encoder.model.set_attn_implementation(own)
        if full:
            kind: Callable[..., AttentionCore] = kinds[name]
            core = partial(kind, num_clusters=options.num_clusters, **settings)
            attention.approximate(encoder.model, core)
        begun = time.process_time()
        found = [similarities(encoder, pairs) for pairs in draws]
        seconds = time.process_time() - begun
        full = full or found
        row = {
            "mechanism": name,
            "options": settings,
            "spearman": list(map(rank_correlation, found, gold)),
            "spearman_with_full": list(map(rank_correlation, found, full)),
            "cpu_seconds": seconds,
        }
        rows.append(row)
        _show(row, rows[0])
    if options.out:
        options.model = options.model.name
        options.pairs = options.pairs.name
        write(options, rows)


def _show(row: dict[str, Any], full: dict[str, Any]) -> None:
    """A line of means over the seeds."""
    away = [own - its for own, its in zip(row["spearman"], full["spearman"], strict=True)]
    spread = f" ±{statistics.stdev(away):.4f}" if len(away) > 1 else ""
    told = ", ".join(f"{key}={value}" for key, value in row["options"].items())
    print(
        f"{row['mechanism']:<28}{statistics.fmean(row['spearman']):>9.4f}"
        f"{f'{statistics.fmean(away):+.4f}{spread}':>18}"
        f"{statistics.fmean(row['spearman_with_full']):>11.4f}{row['cpu_seconds']:>9.1f}  {told}",
        flush=True,
    )
