"""Report of a classifier's test: measures of each label, confusion matrix, every prediction.

B batch   L labels   T test examples
"""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchmetrics import functional
from torchmetrics.utilities import dim_zero_cat

from clusterformer.data.labelled_text import Example
from clusterformer.findings import Findings, Report
from clusterformer.plots import confusion_map
from clusterformer.task import IGNORE, Output
from clusterformer.whole_files import replacing, write_text

_log = logging.getLogger(__name__)

MAX_TABLE = 30
"""Number of labels up to which a table of them is printed, and cells hold their counts."""
_MAX_CHARACTERS = 200  # of a text in the table of predictions
_MEASURES = {"precision": "precision", "recall": "recall", "f1": "f1_score"}
"""Measures of a label, and torchmetrics' names of them."""


class LabelReport(Report):
    """Predictions for every test example, from all processes.

    Args:
        labels: The L labels.
        examples: The T test examples, in the order of their row numbers.
        ranks: Whether the order of the probabilities counts, not the predicted labels.
        balanced: Whether the loss weighs labels, so that rare ones count as much.
    """

    rows: list[Tensor]
    targets: list[Tensor]
    probabilities: list[Tensor]

    def __init__(
        self,
        labels: Sequence[str],
        examples: Sequence[Example],
        *,
        ranks: bool = False,
        balanced: bool = False,
    ) -> None:
        super().__init__()
        self._labels, self._examples = list(labels), examples
        self._ranks, self._balanced = ranks, balanced
        for name in ("rows", "targets", "probabilities"):
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, output: Output, batch: Any) -> None:
        """Count a batch with `row` (B,); rows with target IGNORE do not count."""
        real = batch.target != IGNORE
        self.rows.append(batch.row[real])
        self.targets.append(batch.target[real])
        self.probabilities.append(output.logits[real].float().softmax(-1))

    def compute(self) -> LabelFindings:
        """Findings over all processes, in the order of the test data."""
        rows = dim_zero_cat(self.rows)
        order = rows.argsort()
        return LabelFindings(
            self._labels,
            [self._examples[row] for row in rows[order].tolist()],
            dim_zero_cat(self.targets)[order].cpu(),
            dim_zero_cat(self.probabilities)[order].cpu(),
            ranks=self._ranks,
            balanced=self._balanced,
        )


class LabelFindings(Findings):
    """Labels, predictions and measures of a test set.

    Args:
        labels: The L labels.
        examples: The T test examples.
        targets: Their labels' numbers, (T,).
        probabilities: Probability of each label, (T, L).
        ranks: Whether their order counts, not the predicted labels.
        balanced: Whether the loss weighed labels.
    """

    def __init__(
        self,
        labels: list[str],
        examples: Sequence[Example],
        targets: Tensor,
        probabilities: Tensor,
        *,
        ranks: bool = False,
        balanced: bool = False,
    ) -> None:
        self.labels, self.examples = labels, examples
        self._ranks, self._balanced = ranks, balanced
        self.targets, self.probabilities = targets, probabilities

    @property
    def count(self) -> int:
        """Number of test examples (T)."""
        return len(self.targets)

    @property
    def predicted(self) -> Tensor:
        """Number of the most probable label, (T,)."""
        return self.probabilities.argmax(-1)

    @property
    def confusion(self) -> Tensor:
        """Number of examples by label (row) and predicted label (column), (L, L)."""
        return functional.confusion_matrix(
            self.predicted, self.targets, "multiclass", num_classes=len(self.labels)
        )

    def by_label(self) -> dict[str, dict[str, float]]:
        """Precision, recall, F1 and number of examples of each label."""
        found = {name: self._measure(name, "none").tolist() for name in _MEASURES}
        found["count"] = self.targets.bincount(minlength=len(self.labels)).tolist()
        return {
            label: {name: values[number] for name, values in found.items()}
            for number, label in enumerate(self.labels)
        }

    def _measure(self, name: str, average: str) -> Tensor:
        found: Tensor = getattr(functional, _MEASURES.get(name, name))(
            self.predicted,
            self.targets,
            "multiclass",
            num_classes=len(self.labels),
            average=average,
        )
        return torch.full_like(found, torch.nan) if self.probabilities.isnan().any() else found

    def measures(self) -> dict[str, float]:
        """Measures of each label by name, such as `f1/pos`."""
        return {
            f"{name}/{label}": value
            for label, values in self.by_label().items()
            for name, value in values.items()
            if name != "count"
        }

    def summary(self) -> list[list[str]]:
        """Table of the labels for the terminal; empty if there are too many."""
        if len(self.labels) > MAX_TABLE:
            return []
        head = ["label", "precision", "recall", "F1", "test examples"]
        rows = [
            [
                " ".join(label.split()),  # in one line
                *(f"{values[name]:.3f}" for name in _MEASURES),
                str(values["count"]),
            ]
            for label, values in self.by_label().items()
        ]
        return [head, *rows]

    def warn(self) -> None:
        """Warn in one line if one label is all that is predicted, unless answers are ranked."""
        predicted = self.predicted.unique()
        if self._ranks:  # most answers are wrong, and a good order may call all of them so
            return
        if len(predicted) == 1 and len(self.targets.unique()) > 1:
            _log.warning(
                f"the model predicts {self.labels[int(predicted)]!r} for all "
                f"{len(self.targets)} test examples: it has learnt nothing beyond one label; "
                + (
                    "train longer, or change lr"
                    if self._balanced
                    else "train longer, change lr, or set data.class_weights: balanced"
                )
            )

    def write(self, folder: Path) -> list[Path]:
        """Write `report.json`, `predictions.csv` and, with matplotlib, `confusion.png`.

        Each file is written whole or not at all.
        """
        folder.mkdir(parents=True, exist_ok=True)
        report, table, picture = (
            folder / name for name in ("report.json", "predictions.csv", "confusion.png")
        )
        content = {
            "examples": len(self.targets),
            "accuracy": float(self._measure("accuracy", "micro")),
            "macro": {name: float(self._measure(name, "macro")) for name in _MEASURES},
            "labels": self.by_label(),
            "confusion": {"labels": self.labels, "rows": self.confusion.tolist()},
        }
        write_text(report, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        self._write_predictions(table)
        try:
            confusion_map(
                self.confusion, self.labels, picture, numbers=len(self.labels) <= MAX_TABLE
            )
        except ImportError:
            return [report, table]
        return [report, table, picture]

    def _write_predictions(self, path: Path) -> None:
        with replacing(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            count = len(self.examples[0].texts) if self.examples else 1
            texts = ["text"] if count == 1 else ["first", "second"]
            writer.writerow(["source", "label", "predicted", "probability", *texts])
            rows = zip(
                self.examples,
                self.targets.tolist(),
                self.predicted.tolist(),
                self.probabilities.amax(-1).tolist(),
                strict=True,
            )
            for example, target, predicted, probability in rows:
                names = self.labels[target], self.labels[predicted]
                shown = (text[:_MAX_CHARACTERS] for text in example.texts)
                writer.writerow([example.where, *names, f"{probability:.4f}", *shown])


def all_probabilities(probabilities: Tensor, labels: Sequence[str]) -> list[dict[str, float]]:
    """Probability of every label of each row, (B, L), most probable first."""
    values, order = torch.sort(probabilities, descending=True, stable=True)
    return [
        {labels[number]: value for number, value in zip(*row, strict=True)}
        for row in zip(order.tolist(), values.tolist(), strict=True)
    ]
