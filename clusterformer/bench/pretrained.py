"""Quality of a pretrained encoder under each attention, without training it again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from clusterformer.bench.report import Row
from clusterformer.bench.similarity import (
    MeanPoolingEncoder,
    ScoredPairs,
    rank_correlation,
    similarities,
)
from clusterformer.bench.subjects import choose_mechanisms
from clusterformer.huggingface import attach, detach

DEFAULT = ("ClusteredAttention", "ImprovedClusteredAttention", "MultipoleAttention")
FURTHER_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "ImprovedClusteredAttention": [{"top_k": 64}, {"top_k": 96}],
    "MultipoleAttention": [{"damped": True, "exact_clusters": 2}],
}
"""Options other than the papers', measured in rows of their own."""


def measure(
    encoder: MeanPoolingEncoder,
    draws: Sequence[ScoredPairs],
    names: Sequence[str] | None = None,
    *,
    num_clusters: int = 25,
) -> Iterator[Row]:
    """Correlate similarities of sentence pairs with people's scores, under each attention.

    Args:
        encoder: A pretrained encoder; its attention is replaced in place.
        draws: The pairs, once for each seed.
        names: Classes of mechanisms without weights; None: `DEFAULT`.
        num_clusters: Clusters of each mechanism.

    Yields:
        One row for full attention, then one for each mechanism and its options, with Spearman's
        correlation for each draw: with the scores, and with the similarities of full attention.
    """
    kinds = choose_mechanisms(names or DEFAULT)
    gold = [torch.tensor(pairs.scores) for pairs in draws]
    full: list[Tensor] = []
    forms: list[tuple[str, dict[str, Any]]] = [("FullAttention", {})]
    for name in kinds:
        forms += [(name, options) for options in ({}, *FURTHER_OPTIONS.get(name, ()))]
    for name, options in forms:
        if full:
            attach(encoder.model, kinds[name], num_clusters=num_clusters, **options)
        begun = time.process_time()
        found = [similarities(encoder, pairs) for pairs in draws]
        seconds = time.process_time() - begun
        full = full or found
        yield {
            "mechanism": name,
            "options": options,
            "spearman": list(map(rank_correlation, found, gold)),
            "spearman_with_full": list(map(rank_correlation, found, full)),
            "cpu_seconds": seconds,
        }
    detach(encoder.model)
