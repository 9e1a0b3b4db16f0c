"""`clusterformer bench pretrained`: a pretrained encoder under each attention."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterformer.cli.bench import Parser, chosen_mechanisms, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterformer.attention import AttentionCore

HELP = """
usage: clusterformer bench pretrained --model FOLDER --pairs FILE.tsv [options]

Puts each attention into a pretrained Hugging Face encoder, without training it again, and
correlates its similarities of sentence pairs (lines of text, text, score) with people's scores:
--mechanisms of those without weights; --num_clusters 25; --length 128 tokens at most; --join 1,
pairs of like score that make one pair of longer texts; --threads, --out. Needs transformers.
"""

DEFAULT = ["ClusteredAttention", "ImprovedClusteredAttention", "MultipoleAttention"]
BEYOND = {
    "ImprovedClusteredAttention": [{"top_k": 64}],
    "MultipoleAttention": [{"damped": True, "exact_clusters": 2}],
}
"""Options beyond the papers', in rows of their own."""


def run(arguments: list[str]) -> None:
    """Embed the pairs with each attention, print the correlations, write the JSON."""
    from clusterformer import attention
    from clusterformer.tasks.similarity import Encoder, rank_correlation, read_pairs, similarities

    parser = Parser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--num_clusters", type=int, default=25)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--join", type=int, default=1)
    options = parser.parse(arguments)
    kinds = chosen_mechanisms(options.mechanisms or DEFAULT)

    import torch

    pairs = read_pairs(options.pairs, options.join)
    encoder = Encoder(options.model, options.length)
    own = encoder.model.config._attn_implementation
    gold, full = torch.tensor(pairs.scores), None
    print(f"{len(gold)} pairs\n{'attention':<28}{'Spearman':>9}{'with full':>11}{'seconds':>9}")
    rows: list[dict[str, Any]] = []
    forms: list[tuple[str, dict[str, Any]]] = [("FullAttention", {})]
    for name in kinds:
        forms += [(name, settings) for settings in ({}, *BEYOND.get(name, ()))]
    for name, settings in forms:
        encoder.model.set_attn_implementation(own)
        if full is not None:
            kind: Callable[..., AttentionCore] = kinds[name]
            core = partial(kind, num_clusters=options.num_clusters, **settings)
            attention.approximate(encoder.model, core)
        begun = time.process_time()
        found = similarities(encoder, pairs)
        seconds = time.process_time() - begun
        full = found if full is None else full
        row: dict[str, Any] = {
            "mechanism": name,
            "options": settings,
            "spearman": rank_correlation(found, gold),
            "spearman_with_full": rank_correlation(found, full),
            "cpu_seconds": seconds,
        }
        rows.append(row)
        agreement = row["spearman_with_full"]
        told = ", ".join(f"{key}={value}" for key, value in settings.items())
        print(
            f"{name:<28}{row['spearman']:>9.4f}{agreement:>11.4f}{seconds:>9.1f}  {told}",
            flush=True,
        )
    if options.out:
        options.model = options.model.name
        options.pairs = options.pairs.name
        write(options, rows)
