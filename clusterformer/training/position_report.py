"""Loss of a language model by the position of a token: how much it gains from a long context.

B batch   N tokens   P powers of two up to N
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.findings import Findings, Report
from clusterformer.losses import IGNORE
from clusterformer.plots.position_curve import position_curve
from clusterformer.task import Output
from clusterformer.whole_files import replacing

_FEWEST = 1024
"""Smallest border of a measure: what stands beyond it is a long context."""


class PositionReport(Report):
    """Collector of the loss of each position of a window.

    Args:
        context: N.
    """

    nats: Tensor
    tokens: Tensor

    def __init__(self, context: int) -> None:
        super().__init__()
        zeros = torch.zeros(context, dtype=torch.float64)
        self.add_state("nats", zeros, dist_reduce_fx="sum")
        self.add_state("tokens", zeros.long(), dist_reduce_fx="sum")

    def update(self, output: Output, batch: Any) -> None:
        """Count the targets of a batch."""
        counted = batch.target != IGNORE
        nats = F.cross_entropy(
            output.logits.float().transpose(1, 2),
            batch.target,
            ignore_index=IGNORE,
            reduction="none",
        )
        length = nats.shape[1]
        self.nats[:length] += nats.double().sum(0)
        self.tokens[:length] += counted.sum(0)

    def compute(self) -> PositionFindings:
        """Losses of all processes."""
        return PositionFindings(self.nats.cpu(), self.tokens.cpu())


@dataclass
class PositionFindings(Findings):
    """Loss by position.

    Attributes:
        nats: Sum of the losses at each position, (N,).
        tokens: Number of tokens predicted there, (N,).
    """

    description = "loss by position"
    compared = True

    nats: Tensor
    tokens: Tensor

    @property
    def count(self) -> int:
        """Number of tokens predicted."""
        return int(self.tokens.sum())

    def borders(self) -> list[tuple[int, int]]:
        """Parts of the positions between powers of two: the first one, then 1-2, 2-4, ..."""
        number = len(self.tokens)
        ends = [2**power for power in range(math.ceil(math.log2(max(number, 1))))]
        return list(zip([0, *ends], [*ends, number], strict=True))

    def bits(self, first: int, last: int) -> float:
        """Mean bits of a token at the positions from `first` to before `last`; NaN for none."""
        tokens = self.tokens[first:last].sum()
        return float(self.nats[first:last].sum() / tokens / math.log(2)) if tokens else math.nan

    def measures(self) -> dict[str, float]:
        """Bits of a token at positions from 1,024 on, by powers of two, and before."""
        if len(self.tokens) <= _FEWEST:
            return {}
        borders = [(0, _FEWEST), *(b for b in self.borders() if b[0] >= _FEWEST)]
        return {
            f"bits_per_token_{first}_{last}": self.bits(first, last)
            for first, last in borders
            if self.tokens[first:last].any()
        }

    def summary(self) -> list[list[str]]:
        """Table of the parts from 64 tokens on; empty for a short context."""
        borders = [(first, last) for first, last in self.borders() if first >= 64]
        if not borders:
            return []
        rows = [
            [f"{first:,} to {last:,}", f"{self.bits(first, last):.4f}"]
            for first, last in [(0, borders[0][0]), *borders]
            if self.tokens[first:last].any()
        ]
        return [["tokens before it", "bits per token"], *rows]

    def warn(self) -> None:
        """Warn of nothing."""

    def write(self, folder: Path) -> list[Path]:
        """Write `positions.csv`, the bits of each part, and, with matplotlib, `positions.png`."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "positions.csv"
        with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["first", "last", "bits_per_token", "tokens"])
            for first, last in self.borders():
                count = int(self.tokens[first:last].sum())
                table.writerow([first, last - 1, f"{self.bits(first, last):.6f}", count])
        picture = folder / "positions.png"
        known = [border for border in self.borders() if self.tokens[slice(*border)].any()]
        try:
            position_curve(known, [self.bits(*border) for border in known], picture)
        except ImportError:
            return [path]
        return [path, picture]
