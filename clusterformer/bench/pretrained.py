"""Quality of a pretrained encoder under each attention, without training it again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clusterformer import huggingface
from clusterformer.bench.report import Row
from clusterformer.bench.similarity import (
    MeanPoolingEncoder,
    ScoredPairs,
    rank_correlation,
    similarities,
)
from clusterformer.bench.subjects import choose_mechanisms, takes_clusters
from clusterformer.models.pretrained_model import quiet

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
    converted: Sequence[Path] = (),
) -> Iterator[Row]:
    """Correlate similarities of sentence pairs with people's scores, under each attention.

    Args:
        encoder: A pretrained encoder; its attention is replaced in place.
        draws: The pairs, once for each seed.
        names: Classes of mechanisms without weights; None: `DEFAULT`, or none beside `converted`.
        num_clusters: Clusters of each mechanism that has them.
        converted: Folders of the same encoder with another attention, which were trained.

    Yields:
        One row for full attention, then one for each mechanism and its options, and each folder:
        Spearman's correlation for each draw, with the scores and with the similarities of full
        attention, and the share of its text that a token sees.

    Raises:
        InputError: if a folder holds no converted model.
    """
    kinds = {} if converted and not names else choose_mechanisms(names or DEFAULT)
    gold = [torch.tensor(pairs.scores) for pairs in draws]
    full: list[Tensor] = []
    original = encoder.model
    forms: list[tuple[str, dict[str, Any], Any]] = [("FullAttention", {}, None)]
    for name in kinds:
        forms += [(name, options, None) for options in ({}, *FURTHER_OPTIONS.get(name, ()))]
    with quiet():
        forms += [(folder.name, {}, huggingface.load(folder, "AutoModel")) for folder in converted]
    for name, options, model in forms:
        encoder.model = model or original
        if full and model is None:
            clusters = {"num_clusters": num_clusters} if takes_clusters(kinds[name]) else {}
            huggingface.attach(original, kinds[name], **clusters, **options)
        seen = encoder.keys_seen(draws[0].first[:32])  # also loads what the first pass needs
        begun = time.process_time()
        found = [similarities(encoder, pairs) for pairs in draws]
        seconds = time.process_time() - begun
        full = full or found
        yield {
            "mechanism": name,
            "options": options,
            "converted": model and model.config.clusterformer,
            "spearman": list(map(rank_correlation, found, gold)),
            "spearman_with_full": list(map(rank_correlation, found, full)),
            "keys_seen": seen,
            "cpu_seconds": seconds,
        }
    encoder.model = original
    if huggingface.is_attached(original):
        huggingface.detach(original)
