"""Metrics of generated text: BLEU and chrF over a corpus, bits per byte, perplexity."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics import MeanMetric, Metric

from clusterformer.data.stream_tokenizers import StreamTokenizer, StreamWordTokenizer
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


_SPACES = b" \t\n\r\v\f"


class CodeLength(Metric):
    """Length of the code that the predictions make of a text (Shannon), by some unit of text.

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
        """Count the summed loss of some predicted tokens, and the units of text they spell."""
        self.nats += nats.double()
        self.units += units

    def compute(self) -> Tensor:
        """Over all that was counted, by all processes."""
        mean = self.nats / self.units
        return (mean / math.log(2) if self.scale == "bits" else mean.exp()).float()


@dataclass(frozen=True)
class Units:
    """How much text a token spells, by tables over the vocabulary.

    A word is counted where it begins: at a byte that is no space, behind one or at the start of a
    text. Where line ends are words too, at those as well.

    Attributes:
        bytes: (V,).
        words: (2, V), in row 1 where the token before ends in a space.
        spaced: (V,) 1 where a token ends in a space, or begins a text.
    """

    bytes: Tensor
    words: Tensor
    spaced: Tensor

    @classmethod
    def of(cls, tokenizer: StreamTokenizer, line_ends: bool) -> Units:
        """Count for every token of a vocabulary.

        Args:
            tokenizer: The tokenizer.
            line_ends: Whether a line end is a word, as WikiText has it.
        """
        token_bytes = tokenizer.token_bytes
        if isinstance(tokenizer, StreamWordTokenizer):
            words = [[1] * len(token_bytes)] * 2
            if not line_ends:
                words = [[int(spelled != b"\n") for spelled in token_bytes]] * 2
        else:
            words = [_words(token_bytes, spaced, line_ends) for spaced in (False, True)]
        spaced = [not spelled or spelled[-1] in _SPACES for spelled in token_bytes]
        return cls(
            torch.tensor([len(spelled) for spelled in token_bytes]),
            torch.tensor(words),
            torch.tensor(spaced, dtype=torch.long),
        )

    def count(self, tokens: Tensor, target: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
        """Bytes and words of the `counted` targets, each predicted behind the token beside it."""
        tokens, target = tokens[counted], target[counted]
        tables = (self.bytes, self.words, self.spaced)
        size, words, spaced = (table.to(target.device) for table in tables)
        return size[target].sum(), words[spaced[tokens], target].sum()


def _words(token_bytes: Sequence[bytes], spaced: bool, line_ends: bool) -> list[int]:
    counts = []
    for spelled in token_bytes:
        inside = len(spelled.split())
        if spelled and not spaced and spelled[0] not in _SPACES:
            inside -= 1  # goes on with a word
        counts.append(inside + (spelled.count(b"\n") if line_ends else 0))
    return counts
