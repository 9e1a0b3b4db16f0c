"""Metrics of tasks: BLEU and chrF over a corpus, perplexity, bits per byte, F1, purity.

B batch   V vocabulary
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassF1Score, MulticlassMatthewsCorrCoef
from torchmetrics.regression import PearsonCorrCoef

from clusterformer.data.stream_tokenizers import StreamTokenizer, StreamWordTokenizer
from clusterformer.errors import missing
from clusterformer.task import IGNORE

Score = Literal["tokenised_bleu", "compound_bleu", "sacrebleu", "chrf"]
"""BLEU of what stands between spaces; the same with compounds split; BLEU and chrF of detokenised
text."""


class CorpusScore(Metric):
    """Score of all sentences together, 0 to 100.

    Args:
        name: Name of the score.
        lowercase: Comparison without case.
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
        """Score of all sentences counted, by all processes."""
        return torch.tensor(self._score._compute_score_from_stats(self.statistics.tolist()).score)

    @property
    def signature(self) -> str:
        """Signature of the score, by sacrebleu's convention."""
        return str(self._score.get_signature())

    def _count(self, hypotheses: Sequence[str], references: Sequence[str]) -> list[list[int]]:
        return self._score._extract_corpus_statistics(hypotheses, [references])


def _split_compounds(sentences: Sequence[str]) -> list[str]:
    """Split words at hyphens, as is usual for WMT14 English-German (Vaswani et al., 2017)."""
    return [re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", sentence) for sentence in sentences]


def _library() -> Any:
    try:
        from sacrebleu import metrics
    except ImportError:
        raise missing("translation scores need the sacrebleu library", "text") from None
    return metrics


_SPACES = b" \t\n\r\v\f"


class CodeLength(Metric):
    """Length of the code that predictions make of a text (Shannon), for each unit of it or token.

    Args:
        scale: "bits" for log2 per unit, "perplexity" for the exponential of nats per unit.
    """

    nats: Tensor
    units: Tensor

    def __init__(self, scale: Literal["bits", "perplexity"]) -> None:
        super().__init__()
        self.scale = scale
        self.add_state("nats", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("units", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, nats: Tensor, units: Tensor) -> None:
        """Count the summed loss of some predicted tokens, and the number of their units."""
        self.nats += nats.double()
        self.units += units

    def compute(self) -> Tensor:
        """Code length over all tokens counted, by all processes."""
        mean = self.nats / self.units
        return (mean / math.log(2) if self.scale == "bits" else mean.exp()).float()


class PositiveF1(MulticlassF1Score):
    """F1 of the last of two labels, such as "1" of "0" and "1"."""

    def __init__(self) -> None:
        super().__init__(num_classes=2, average=None, ignore_index=IGNORE)

    def compute(self) -> Tensor:
        """F1 of that label over all examples counted, by all processes."""
        return super().compute()[1]


class MatthewsCorrelation(MulticlassMatthewsCorrCoef):
    """Matthews' correlation of two labels, as scikit-learn's: 0 where only one is predicted.

    torchmetrics gives up to 0.1 there.
    """

    def __init__(self) -> None:
        super().__init__(2, ignore_index=IGNORE)

    def compute(self) -> Tensor:
        is_constant = min(self.confmat.sum(0).min(), self.confmat.sum(1).min()) == 0
        return self.confmat.new_zeros((), dtype=torch.float) if is_constant else super().compute()


class PearsonCorrelation(PearsonCorrCoef):
    """Pearson's correlation, 0 where all predictions are the same, as Spearman's.

    torchmetrics gives NaN there, which would end a training that monitors it.
    """

    def compute(self) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The variance of predictions or target")
            found = super().compute()
        return found.nan_to_num(0) if self.mean_x.isfinite().all() else found


class Purity(Metric):
    """Share of points whose label is that of the majority of their cluster.

    Args:
        num_clusters: Number of clusters.
        num_labels: Number of labels.
    """

    table: Tensor

    def __init__(self, num_clusters: int, num_labels: int) -> None:
        super().__init__()
        zeros = torch.zeros(num_clusters, num_labels, dtype=torch.long)
        self.add_state("table", zeros, dist_reduce_fx="sum")

    def update(self, clusters: Tensor, labels: Tensor) -> None:
        """Count points by their clusters (B,) and labels (B,), leaving out IGNORE."""
        known = labels != IGNORE
        one = torch.ones_like(labels[known])
        self.table.index_put_((clusters[known], labels[known]), one, accumulate=True)

    def compute(self) -> Tensor:
        """Purity of all points counted, by all processes."""
        return self.table.amax(1).sum() / self.table.sum().clamp(min=1)


@dataclass(frozen=True)
class Units:
    """Amount of text in each token of a vocabulary.

    A word is counted where it begins: at a byte that is no space, behind a space or at the start
    of a text. Line ends may count as words too.

    Attributes:
        bytes: (V,) number of bytes of each token.
        words: (2, V) number of words that begin in each token; row 1 behind a token that ends in a
            space, row 0 behind any other.
        spaced: (V,) 1 for a token that ends in a space, or begins a text.
    """

    bytes: Tensor
    words: Tensor
    spaced: Tensor

    @classmethod
    def of(cls, tokenizer: StreamTokenizer, line_ends: bool) -> Units:
        """Count bytes and words of every token of a tokenizer.

        Args:
            tokenizer: Tokenizer of a language model.
            line_ends: Whether a line end is a word, as in WikiText.
        """
        token_bytes = tokenizer.token_bytes
        if isinstance(tokenizer, StreamWordTokenizer):
            line_end = b"" if line_ends else b"\n"
            words = [[int(token not in (b"", line_end)) for token in token_bytes]] * 2
        else:
            words = [_words(token_bytes, spaced, line_ends) for spaced in (False, True)]
        spaced = [not token or token[-1] in _SPACES for token in token_bytes]
        return cls(
            torch.tensor([len(token) for token in token_bytes]),
            torch.tensor(words),
            torch.tensor(spaced, dtype=torch.long),
        )

    def count(self, tokens: Tensor, target: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
        """Sum bytes and words of the targets where `counted` is True.

        Args:
            tokens: (B, N), the token before each target.
            target: (B, N).
            counted: (B, N) bool.
        """
        tokens, target = tokens[counted], target[counted]
        tables = (self.bytes, self.words, self.spaced)
        size, words, spaced = (table.to(target.device) for table in tables)
        return size[target].sum(), words[spaced[tokens], target].sum()


def _words(token_bytes: Sequence[bytes], spaced: bool, line_ends: bool) -> list[int]:
    counts = []
    for token in token_bytes:
        inside = len(token.split())
        if token and not spaced and token[0] not in _SPACES:
            inside -= 1  # continues a word
        counts.append(inside + (token.count(b"\n") if line_ends else 0))
    return counts
