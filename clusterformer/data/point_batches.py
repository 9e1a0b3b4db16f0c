"""Batches of points with their neighbours.

B batch   P points   F features   K neighbours
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from clusterformer.losses import IGNORE


class PointBatch(NamedTuple):
    """Points with their neighbours."""

    points: Tensor  # (B, F) features
    neighbors: Tensor  # (B, K, F) features of the neighbours, nearest first
    mask: Tensor  # (B, 1) bool
    target: Tensor  # (B,) number of the label, IGNORE where there is none


class PointDataset(Dataset[PointBatch]):
    """Points in memory; a list of indices gives a batch.

    Args:
        features: (P, F), of P points.
        neighbors: (P, K), indices of each point's neighbours, nearest first.
        target: (P,), number of each label.
    """

    def __init__(self, features: Tensor, neighbors: Tensor, target: Tensor) -> None:
        self.features, self._neighbors, self._target = features, neighbors, target

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, indices: list[int]) -> PointBatch:
        rows = torch.tensor(indices or [0])
        mask = torch.full((len(rows), 1), bool(indices))
        target = self._target[rows].masked_fill(~mask[:, 0], IGNORE)
        return PointBatch(self.features[rows], self.features[self._neighbors[rows]], mask, target)
