"""Matching of texts: equivalent questions, and answers to a question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.retrieval import RetrievalMAP, RetrievalMRR

from clusterformer.data.corpora import MatchingCorpus
from clusterformer.data.labelled_text import Example, TextPair
from clusterformer.data.tables import Column
from clusterformer.errors import InputError
from clusterformer.task import Output
from clusterformer.tasks.metrics import PositiveF1
from clusterformer.tasks.pairs import PairBatch, PairLabelling
from clusterformer.training.text_baselines import Labelled


class Matching(PairLabelling):
    """Tell whether two texts match, or rank the answers to each question.

    Ranking (wikiqa, and own files with `group_column`) is measured by mean average precision and
    mean reciprocal rank over the questions that have a right answer; label 1 is right, 0 wrong.

    Args:
        name: Named data set: mrpc, quora (BiMPM's split) or wikiqa; without their training or test
            files quora-part (trains on the development set and 1,897 more pairs), qqp-part (the
            same 1,897 pairs of GLUE's version alone) or wikiqa-part (tests on the development set).
            mrpc and qqp-part are measured by the F1 of label 1 too, as in GLUE.
        group_column: Column of the question's name in own files, by name or by number from 1.
        options: Options of `PairLabelling`.
    """

    def __init__(
        self,
        name: MatchingCorpus | None = None,
        *,
        group_column: Column | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name, **options)
        if name is not None and group_column is not None:
            raise InputError(f"group_column is for own files, got {group_column!r} with {name}")
        self._columns["group_column"] = group_column
        self._ranks = group_column is not None or name in ("wikiqa", "wikiqa-part")
        self._paraphrases = name in ("mrpc", "qqp-part")
        if self._ranks:
            self.monitor = "val/map"

    def learn_labels(self, examples: Sequence[Example]) -> list[str]:
        labels = super().learn_labels(examples)
        if self._ranks and labels != ["0", "1"]:
            raise InputError(f"ranking needs label 1 for right answers and 0 else, found {labels}")
        return labels

    def unmeasurable(self, examples: Sequence[Any]) -> str | None:
        if not self._ranks or any(pair.label == "1" for pair in examples):
            return None
        return "no question has a right answer (label 1), so map and mrr are 0 in any order"

    def metrics(self) -> MetricCollection:
        if not self._ranks:
            found = super().metrics()
            if self._paraphrases:
                found.add_metrics({"f1_positive": PositiveF1()})
            return found
        return MetricCollection(
            {
                "map": RetrievalMAP(empty_target_action="skip"),
                "mrr": RetrievalMRR(empty_target_action="skip"),
            }
        )

    def measure(self, examples: Sequence[TextPair], found: Labelled) -> dict[str, float]:
        if not self._ranks:
            measures = super().measure(examples, found)
            if self._paraphrases:
                from sklearn.metrics import f1_score

                labels = [pair.label for pair in examples]
                measures["f1_positive"] = float(f1_score(labels, found.labels, pos_label="1"))
            return measures
        numbers: dict[str, int] = {}
        groups = [numbers.setdefault(pair.group, len(numbers)) for pair in examples]
        metrics = self.metrics()
        metrics.update(
            _rankable(torch.from_numpy(found.scores)),
            torch.tensor([pair.label == "1" for pair in examples]),
            indexes=torch.tensor(groups),
        )
        return {name: float(value) for name, value in metrics.compute().items()}

    def update(
        self, metrics: MetricCollection, output: Output, batch: PairBatch, network: nn.Module
    ) -> None:
        if not self._ranks:
            super().update(metrics, output, batch, network)
            return
        # A dummy row is a wrong answer to question 0, which has no right one and is skipped.
        wrong, right = output.logits.float().unbind(-1)
        scores = _rankable(right - wrong)
        metrics.update(scores, batch.target.clamp(min=0), indexes=batch.group)


def _rankable(margins: Tensor) -> Tensor:
    """Map margins to 0..1 in their order: torchmetrics counts only scores above 0 as answers.

    A sigmoid in float32 is 1 from a margin of 17 on, and ranks all answers beyond alike.
    """
    return 0.5 + 0.5 * F.softsign(margins)
