"""Findings of a test: what it says beyond its measures, and what collects it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from torchmetrics import Metric

from clusterformer.models.transformer import Output


class Findings(ABC):
    """Results of a test beyond its measures: a table for the terminal, and files.

    Attributes:
        description: Description of the files.
        compared: Whether `measures()` stand among the results of a run too.
    """

    description = "report, confusion matrix, each prediction"
    compared = False

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of test examples."""

    @abstractmethod
    def measures(self) -> dict[str, float]:
        """Further measures by name."""

    @abstractmethod
    def summary(self) -> list[list[str]]:
        """Table for the terminal, its head first; empty for none."""

    @abstractmethod
    def warn(self) -> None:
        """Log a warning if the results show that the training went wrong."""

    @abstractmethod
    def write(self, folder: Path) -> list[Path]:
        """Write files into a folder, made here; return their paths."""


class Report(Metric, ABC):
    """Collector of the findings of a test, batch by batch, over all processes."""

    full_state_update = False

    @abstractmethod
    def update(self, output: Output, batch: Any) -> None:
        """Count a batch of this process."""

    @abstractmethod
    def compute(self) -> Findings:
        """Findings of all processes."""
