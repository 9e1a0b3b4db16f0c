"""Batches of texts that ask at some of their tokens.

B batch   N tokens   A tokens that ask
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class AskingBatch(NamedTuple):
    """Texts, and the answers to what they ask."""

    tokens: Tensor  # (B, N) int64
    mask: Tensor  # (B, N) bool
    target: Tensor  # (B, A) int64
    asked: Tensor  # (B, A) int64: positions
