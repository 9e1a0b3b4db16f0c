"""Similarity of sentences by a pretrained encoder (STS-B), with any attention in it.

E model width
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.functional import spearman_corrcoef

from clusterformer import huggingface
from clusterformer.data.pretrained import read_model
from clusterformer.data.tables import read_text, text_lines
from clusterformer.errors import InputError
from clusterformer.models.pooling import pool


class ScoredPairs(NamedTuple):
    """Pairs of texts, and the scores that people gave to their similarity."""

    first: list[str]
    second: list[str]
    scores: list[float]


def read_scored_pairs(path: Path, join: int = 1, seed: int = 0) -> ScoredPairs:
    """Read TSV lines `text, text, score`.

    Args:
        path: The file.
        join: Number of pairs to join into one of longer texts, whose score is their mean. Pairs of
            similar scores are joined, so that long pairs differ as much as short ones do.
        seed: Seed of the order of pairs with the same score; another seed joins other pairs.

    Raises:
        InputError: if a line has another form, or there are fewer lines than `join`.
    """
    rows = []
    for number, line in enumerate(text_lines(read_text(path)), 1):
        fields = line.split("\t")
        try:
            first, second, score = fields
            rows.append((first, second, float(score)))
        except ValueError:
            raise InputError(
                f"{path}:{number}: expected text, text, score; found {len(fields)} fields, "
                f"the last {fields[-1][:40]!r}"
            ) from None
    random.Random(seed).shuffle(rows)
    rows.sort(key=lambda row: row[2])
    groups = [rows[at : at + join] for at in range(0, len(rows) - join + 1, join)]
    if not groups:
        raise InputError(f"{path}: {len(rows)} lines, but --join {join}")
    return ScoredPairs(
        [" ".join(row[0] for row in group) for group in groups],
        [" ".join(row[1] for row in group) for group in groups],
        [sum(row[2] for row in group) / join for group in groups],
    )


class MeanPoolingEncoder:
    """A pretrained encoder and its tokenizer: texts to unit vectors by masked means.

    Args:
        folder: Directory of the pretrained model.
        length: Largest number of tokens of a text; longer ones are cut.

    Raises:
        InputError: if the directory holds no pretrained model with its own attention.
    """

    def __init__(self, folder: Path, length: int) -> None:
        if not (folder / "config.json").is_file():
            raise InputError(f"{folder}: no config.json; give the folder of a pretrained model")
        model, self.tokenizer = read_model(str(folder), folder)
        self.model: Any = model.base_model  # transformers types it as any module
        self.length = length

    @torch.no_grad()
    def __call__(self, texts: Sequence[str], batch_size: int = 32) -> Tensor:
        """Encode texts to unit vectors, (texts, E)."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        vectors = torch.empty(len(texts), self.model.config.hidden_size)
        for at in range(0, len(order), batch_size):
            some = order[at : at + batch_size]
            batch = self._batch([texts[i] for i in some])
            hidden = self.model(**batch).last_hidden_state
            vectors[some] = pool(hidden, batch["attention_mask"].bool(), "mean")
        return F.normalize(vectors, dim=-1)

    def keys_seen(self, texts: Sequence[str]) -> float | None:
        """Compute the share of its text that a token sees, as `huggingface.keys_seen` does."""
        return huggingface.keys_seen(self.model, self._batch(texts))

    def _batch(self, texts: Sequence[str]) -> dict[str, Tensor]:
        return dict(
            self.tokenizer(
                list(texts),
                padding=True,
                padding_side="right",  # a text's positions begin at 0 then
                truncation=True,
                max_length=self.length,
                return_tensors="pt",
            )
        )


def similarities(encoder: MeanPoolingEncoder, pairs: ScoredPairs) -> Tensor:
    """Compute the cosine similarity of each pair, (pairs,)."""
    return (encoder(pairs.first) * encoder(pairs.second)).sum(-1)


def rank_correlation(found: Tensor, expected: Tensor) -> float:
    """Compute Spearman's rank correlation."""
    return float(spearman_corrcoef(found.double(), expected.double()))
