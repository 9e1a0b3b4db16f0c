"""Similarity of two texts, as a number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.regression import SpearmanCorrCoef

from clusterformer.data.corpora import SimilarityCorpus
from clusterformer.data.label_names import LabellingState
from clusterformer.data.labelled_text import Example, TextPair
from clusterformer.errors import InputError, missing
from clusterformer.models.config import TransformerConfig
from clusterformer.models.pretrained import PretrainedSimilarity
from clusterformer.task import Output, SimpleResult
from clusterformer.tasks.metrics import PearsonCorrelation
from clusterformer.tasks.pairs import PairBatch, PairDataset, PairLabelling

TF_IDF = "cosine of TF-IDF"


class SimilarityState(LabellingState):
    """State of the task in a checkpoint."""

    scale: list[float]


def score_bits(scores: Sequence[float]) -> list[int]:
    """Return the bits of scores in float32.

    As integers they pass Lightning, which rounds all other numbers of a batch under
    `trainer.precision` bf16-true and 16-true.
    """
    return torch.tensor(scores, dtype=torch.float32).view(torch.int32).tolist()


class Similarity(PairLabelling):
    """Tell how similar two texts are, as a number.

    Measured by Spearman's and Pearson's correlation. The label of a pair is a number. The lowest
    and the highest one of the training data are the ends of the scale. A pretrained model that
    encodes texts apart compares their pooled vectors by the cosine, so that an encoder of sentences
    is good before it is trained; all other networks have a head for one number. The loss is the
    squared error, in units of the scale.

    Args:
        name: Named data set: stsb.
        options: Options of `PairLabelling`.
    """

    monitor = "val/spearman"
    state_type: Any = SimilarityState
    scored = True
    commands: Mapping[str, str] = {"score pairs": "predict --checkpoint {run} --input FILE"}
    smooths_labels = False

    def __init__(self, name: SimilarityCorpus | None = None, **options: Any) -> None:
        super().__init__(name, **options)
        if self._class_weights is not None:
            raise InputError("class_weights are for labels, and these are numbers; leave it out")
        self._scale = (0.0, 1.0)

    def learn_labels(self, examples: Sequence[Example]) -> list[str]:
        """Learn the ends of the scale; the one label names the number."""
        numbers = self.targets(examples)
        self._scale = (min(numbers), max(numbers))
        if self._scale[0] == self._scale[1]:
            raise InputError(f"{examples[0].where}: all pairs have the same score {numbers[0]}")
        return ["score"]

    def targets(self, examples: Sequence[Example]) -> list[Any]:
        """Score of each example."""
        return [_number(example) for example in examples]

    def unmeasurable(self, examples: Sequence[Any]) -> str | None:
        if len(set(scores := self.targets(examples))) > 1:
            return None
        return f"all pairs have the same score {scores[0]:g}, so nothing correlates with it"

    def encoded(
        self, examples: Sequence[TextPair], tokens: list[list[list[int]]], targets: list[Any]
    ) -> PairDataset:
        """Make the data set of pairs; their targets are `score_bits`."""
        return super().encoded(examples, tokens, score_bits(targets))

    def build(self, config: TransformerConfig) -> nn.Module:
        if not self.joint and (encoder := self.rows.make_encoder(config)) is not None:
            return PretrainedSimilarity(config, encoder)
        return super().build(config)

    def scores(self, output: Output) -> Tensor:
        """Scores of the pairs on the scale of the data, (B,)."""
        low, high = self._scale
        return low + (high - low) * output.logits[:, 0].float()

    @staticmethod
    def wanted(batch: PairBatch) -> Tensor:
        """Scores that the data give to the pairs, (B,)."""
        return batch.target.int().view(torch.float32)

    def loss(
        self, output: Output, batch: PairBatch, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        real = batch.row >= 0  # a score may be IGNORE
        low, high = self._scale
        errors = (self.scores(output) - self.wanted(batch)) / (high - low)
        return errors[real].square().sum(), real.sum()

    def metrics(self) -> MetricCollection:
        return MetricCollection(
            {"spearman": SpearmanCorrCoef(), "pearson": PearsonCorrelation()}, compute_groups=False
        )

    def baselines(self, *, cheap: bool = False) -> dict[str, Callable[[], SimpleResult]]:
        if cheap and find_spec("sklearn") is None:
            return {}
        return {TF_IDF: self._tf_idf}

    def _tf_idf(self) -> SimpleResult:
        """Compare texts by the words that they share."""
        try:
            from sklearn.feature_extraction.text import TfidfVectorizer
        except ImportError:
            raise missing(f"{TF_IDF} needs scikit-learn", "cluster") from None
        test = self.read("test")
        words = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+")
        words.fit([text for pair in self.read("train") for text in pair.texts])
        first, second = (
            words.transform(texts) for texts in zip(*(p.texts for p in test), strict=True)
        )
        cosines = torch.tensor(first.multiply(second).sum(1)).view(-1)
        metrics = self.metrics().set_dtype(torch.float64)
        metrics.update(cosines, torch.tensor(self.targets(test)).double())
        return SimpleResult({name: float(value) for name, value in metrics.compute().items()}, 0)

    def report(self) -> None:
        """Return none: there are no labels to count."""

    def update(
        self, metrics: MetricCollection, output: Output, batch: PairBatch, network: nn.Module
    ) -> None:
        real = batch.row >= 0
        if real.any():  # not of a process without a share, and Pearson takes no empty batch
            metrics.update(self.scores(output)[real], self.wanted(batch)[real])

    def predictions(self, network: nn.Module, batch: PairBatch) -> list[dict[str, Any]]:
        """Score of each pair."""
        return [{"score": score} for score in self.scores(network(batch)).tolist()]

    def state(self) -> dict[str, Any]:
        return {**super().state(), "scale": list(self._scale)}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        if not (len(state["scale"]) == 2 and 0 < state["scale"][1] - state["scale"][0] < math.inf):
            raise InputError(f"scale must be two numbers, rising, got {state['scale']!r:.60}")
        low, high = state["scale"]
        self._scale = (low, high)


def _number(example: Example) -> float:
    try:
        number = float(example.label)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{example.where}: the score must be a number, got {example.label!r}")
    return number
