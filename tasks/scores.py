"""Scores of generated text over a whole corpus, however many processes share it.

BLEU and chrF, by sacrebleu, are functions of counts that add up over sentences, and these alone are
kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torchmetrics import MeanMetric, Metric

from clusterformer.errors import InputError

Score = Literal["tokenised_bleu", "compound_bleu", "sacrebleu", "chrf"]
"""BLEU of given tokens; the same with compounds split; BLEU and chrF of detokenised text."""


class CorpusScore(Metric):
    """One score of all sentences, 0 to 100.

    Args:
        name: Which.
        lowercase: Whether case is ignored.
    """

    higher_is_better = True
    full_state_update = False
    statistics: torch.Tensor

    def __init__(self, name: Score, lowercase: bool = False) -> None:
        super().__init__()
        self.name = name
        library = _library()
        if name == "chrf":
            self._score = library.CHRF(lowercase=lowercase)
        else:
            tokens = "13a" if name == "sacrebleu" else "none"
            self._score = library.BLEU(lowercase=lowercase, tokenize=tokens, force=True)
        self._size = len(self._count(["a"], ["a"])[0])
        self.add_state("statistics", torch.zeros(self._size, dtype=torch.long), "sum")

    def update(self, hypotheses: Sequence[str], references: Sequence[str]) -> None:
        """Count some sentences."""
        if self.name == "compound_bleu":
            hypotheses, references = _split_compounds(hypotheses), _split_compounds(references)
        if hypotheses:
            counts = torch.tensor(self._count(hypotheses, references))
            self.statistics += counts.sum(0).to(self.statistics.device)

    def compute(self) -> torch.Tensor:
        """The score of all sentences counted."""
        return torch.tensor(self._score._compute_score_from_stats(self.statistics.tolist()).score)

    @property
    def signature(self) -> str:
        """How it was taken, by sacrebleu's convention."""
        return str(self._score.get_signature())

    def _count(self, hypotheses: Sequence[str], references: Sequence[str]) -> list[list[int]]:
        return self._score._extract_corpus_statistics(hypotheses, [references])


class Perplexity(MeanMetric):
    """Exponential of the mean loss a token, in nats; update with mean losses and their weights."""

    def __init__(self) -> None:
        super().__init__(nan_strategy="ignore")

    def compute(self) -> torch.Tensor:
        """Over all tokens counted."""
        return super().compute().exp()


def _split_compounds(sentences: Sequence[str]) -> list[str]:
    """Part words at hyphens, as is usual for WMT14 English-German (Vaswani et al., 2017)."""
    return [re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", sentence) for sentence in sentences]


def _library() -> Any:
    try:
        from sacrebleu import metrics
    except ImportError:
        raise InputError(
            "translation scores need the sacrebleu library: pip install 'clusterformer[text]'"
        ) from None
    return metrics
