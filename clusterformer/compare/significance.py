"""Significance of paired differences: the sign-flip permutation test, exact for few pairs.

If two models are equally good, each difference of a pair is as likely to have the other sign. The
p-value is the share of all sign patterns whose mean is at least as far from 0 as the one observed.
It holds for any distribution and number of pairs that do not depend on one another. Folds of a
cross-validation do, as their training parts overlap: with them p comes out too small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MIN_PAIRS = 3
"""With fewer pairs no test is made: p could not be below 0.5."""

MIN_SEEDS = 3
"""With fewer seeds no test is made: runs of one seed on several data sets share what it drew."""

MAX_EXACT = 16
"""Most pairs for which all sign patterns are counted."""

PATTERNS = 99_999
"""Number of random sign patterns, from a fixed generator, for more pairs."""


class PairedTest(NamedTuple):
    """Outcome of a test.

    Attributes:
        p: Two-sided p-value of a mean difference of zero.
        num_pairs: Number of pairs.
    """

    p: float
    num_pairs: int

    @property
    def min_p(self) -> float:
        """Smallest p-value that so many pairs can give."""
        return 2 / 2**self.num_pairs if self.num_pairs <= MAX_EXACT else 1 / (PATTERNS + 1)


def sign_flip_test(differences: Sequence[float]) -> PairedTest | None:
    """Test whether the mean of paired differences is zero; None for fewer than three pairs.

    Args:
        differences: One difference for each pair; those that are not finite are left out.
    """
    pairs = np.array([value for value in differences if math.isfinite(value)])
    number = len(pairs)
    if number < MIN_PAIRS:
        return None
    pairs = pairs / (np.abs(pairs).max() or 1.0)
    observed = abs(pairs.sum()) - 1e-9  # sums of the same numbers may differ by rounding
    if number <= MAX_EXACT:
        patterns = np.arange(2 ** (number - 1))[:, None] >> np.arange(number) & 1
        sums = (1 - 2 * patterns) @ pairs  # the other half of the patterns is their mirror image
        return PairedTest(float((np.abs(sums) >= observed).mean()), number)
    generator = np.random.default_rng(0)
    extreme = 1  # the observed pattern
    for _ in range(9):  # in parts, for the memory
        signs = generator.choice((-1.0, 1.0), (PATTERNS // 9, number))
        extreme += int((np.abs(signs @ pairs) >= observed).sum())
    return PairedTest(extreme / (PATTERNS + 1), number)


def format_p(p: float) -> str:
    """Format a p-value with three digits."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
