"""Base of the tasks that give an example one label: labels, loss and metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from clusterformer.data.doubtful_examples import warn_of_header
from clusterformer.data.label_names import (
    LabellingState,
    balanced_weights,
    check_labels,
    sorted_labels,
)
from clusterformer.data.labelled_text import Example
from clusterformer.errors import InputError
from clusterformer.losses import cross_entropy
from clusterformer.task import IGNORE, Output, SimpleResult
from clusterformer.tasks.labelled_texts import LabelledTexts
from clusterformer.training.label_report import LabelReport, all_probabilities
from clusterformer.training.text_baselines import Labelled, label_measures, text_baselines


class Labelling(LabelledTexts):
    """Give each example one of several labels.

    Subclasses pass their `**options` on to these.

    Args:
        name: Named data set.
        class_weights: "balanced" to weigh each label in the loss by the inverse of how often the
            training data has it; all texts weigh the same by default.
        options: Options of `LabelledTexts`.
    """

    state_type: Any = LabellingState
    kept_options: tuple[str, ...] = (*LabelledTexts.kept_options, "class_weights")

    def __init__(
        self,
        name: str | None = None,
        *,
        class_weights: Literal["balanced"] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name, **options)
        self._labels: list[str] = []
        self._class_weights = class_weights
        self._ranks = False  # the examples of a group
        self._label_weights: Tensor | None = None

    def learn_targets(self, examples: Sequence[Example]) -> None:
        """Learn the labels and, where they are balanced, their weights."""
        self._labels = self.learn_labels(examples)
        if self._class_weights == "balanced":
            given = (example.label for example in examples)
            self._label_weights = balanced_weights(self._labels, given)

    def learn_labels(self, examples: Sequence[Example]) -> list[str]:
        """List all labels, in the order of their numbers."""
        found = sorted_labels(example.label for example in examples)
        if (file := self._files["train"]) is not None:
            warn_of_header(file, examples)
        return found

    def targets(self, examples: Sequence[Example]) -> list[Any]:
        """Number of the label of each example."""
        numbers = {label: number for number, label in enumerate(self._labels)}
        for example in examples:
            if example.label not in numbers:
                raise InputError(
                    f"{example.where}: label {example.label!r} is not among those of the training "
                    f"data, {', '.join(self._labels):.500}"
                )
        return [numbers[example.label] for example in examples]

    def loss(self, output: Output, batch: Any, label_smoothing: float) -> tuple[Tensor, Tensor]:
        weights = self._label_weights
        if weights is not None:
            weights = weights.to(output.logits.device)
        return cross_entropy(output.logits, batch.target, label_smoothing, weights)

    def metrics(self) -> MetricCollection:
        options: dict[str, Any] = {"num_classes": len(self._labels), "ignore_index": IGNORE}
        return MetricCollection(
            {
                "accuracy": MulticlassAccuracy(average="micro", **options),
                "f1": MulticlassF1Score(average="macro", **options),
            }
        )

    def report(self) -> LabelReport | None:
        balanced = self._label_weights is not None
        return LabelReport(self._labels, self._test_examples, ranks=self._ranks, balanced=balanced)

    def update(
        self, metrics: MetricCollection, output: Output, batch: Any, network: nn.Module
    ) -> None:
        metrics.update(output.logits, batch.target)

    def predictions(self, network: nn.Module, batch: Any) -> list[dict[str, Any]]:
        return [
            {"label": label, "probability": found[label]}
            for found in self.all_probabilities(network, batch)
            for label in [next(iter(found))]
        ]

    def all_probabilities(self, network: nn.Module, batch: Any) -> list[dict[str, float]]:
        """Probability of every label for each row of `batch`, most probable first."""
        return all_probabilities(network(batch).logits.float().softmax(-1), self._labels)

    def baselines(self, *, cheap: bool = False) -> dict[str, Callable[[], SimpleResult]]:
        self.refuse_ignored()  # one of them may be trained alone
        return text_baselines(self.read, self.measure, cheap=cheap)

    def measure(self, examples: Sequence[Any], found: Labelled) -> dict[str, float]:
        """Measure the labels of a simple method, as `metrics()` does those of the network."""
        return label_measures(examples, found)

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "labels": self._labels,
            "label_weights": self._label_weights,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        check_labels(state["labels"], state["label_weights"])
        self._labels, self._label_weights = state["labels"], state["label_weights"]
