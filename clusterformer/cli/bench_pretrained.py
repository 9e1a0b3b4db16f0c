"""`clusterformer bench pretrained`: a pretrained encoder under each attention."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterformer.cli.bench import Parser, write
from clusterformer.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterformer.attention import AttentionCore

DEFAULT = ["ClusteredAttention", "ImprovedClusteredAttention", "MultipoleAttention"]


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
    kinds: dict[str, Callable[..., AttentionCore]] = {
        kind.__name__: kind for kind in attention.mechanisms()
    }
    names = options.mechanisms or DEFAULT
    if unknown := set(names) - set(kinds):
        raise InputError(f"no mechanism {min(unknown)!r}; there are {', '.join(kinds)}")

    import torch

    pairs = read_pairs(options.pairs, options.join)
    encoder = Encoder(options.model, options.length)
    own = encoder.model.config._attn_implementation
    gold, full = torch.tensor(pairs.scores), None
    print(f"{len(gold)} pairs\n{'attention':<28}{'Spearman':>9}{'with full':>11}{'seconds':>9}")
    rows: list[dict[str, Any]] = []
    for name in ["FullAttention", *names]:
        encoder.model.set_attn_implementation(own)
        if full is not None:
            core = partial(kinds[name], num_clusters=options.num_clusters)
            attention.approximate(encoder.model, core)
        begun = time.process_time()
        found = similarities(encoder, pairs)
        seconds = time.process_time() - begun
        full = found if full is None else full
        row: dict[str, Any] = {
            "mechanism": name,
            "spearman": rank_correlation(found, gold),
            "spearman_with_full": rank_correlation(found, full),
            "cpu_seconds": seconds,
        }
        rows.append(row)
        agreement = row["spearman_with_full"]
        print(f"{name:<28}{row['spearman']:>9.4f}{agreement:>11.4f}{seconds:>9.1f}", flush=True)
    if options.out:
        options.model = options.model.name
        options.pairs = options.pairs.name
        write(options, rows)
