"""The sign-flip test against a count by hand, and what it may claim."""

import itertools
import random
from statistics import fmean

import pytest

from clusterformer.compare.significance import (
    MAX_EXACT,
    PATTERNS,
    format_p,
    sign_flip_test,
)


def brute_force(differences: list[float]) -> float:
    """Count all sign patterns one by one, in exact numbers."""
    observed = abs(sum(differences))
    patterns = list(itertools.product((1, -1), repeat=len(differences)))
    sums = (sum(s * d for s, d in zip(signs, differences, strict=True)) for signs in patterns)
    return sum(abs(total) >= observed for total in sums) / len(patterns)


def test_it_counts_as_brute_force_does() -> None:
    draw = random.Random(0)
    for number in [3, 4, 5, 6, 7, 8, 9] * 4:
        differences = [draw.randint(-5, 8) for _ in range(number)]  # whole numbers, with ties
        test = sign_flip_test([difference / 8 for difference in differences])
        assert test is not None
        assert test == (pytest.approx(brute_force(differences)), number)


def test_few_pairs_cannot_be_significant() -> None:
    assert sign_flip_test([1.0, 1.0]) is None
    assert sign_flip_test([1.0, 1.0, float("nan")]) is None
    for number, smallest in ((3, 0.25), (4, 0.125), (5, 0.0625), (6, 0.03125)):
        test = sign_flip_test([0.1] * number)
        assert test is not None
        assert test.p == test.min_p == smallest
    assert sign_flip_test([0.0, 0.0, 0.0]) == (1.0, 3)


def test_p_is_never_zero() -> None:
    test = sign_flip_test([1.0] * 60)
    assert test == (1 / (PATTERNS + 1), 60)
    assert format_p(1 / (PATTERNS + 1)) == "< 0.001"
    assert format_p(0.0312) == "0.031"


def test_random_patterns_agree_with_all_of_them() -> None:
    draw = random.Random(1)
    few = [draw.gauss(0.4, 1.0) for _ in range(MAX_EXACT)]
    exact, drawn = sign_flip_test(few), sign_flip_test([*few, 0.0])
    assert exact is not None
    assert drawn is not None
    assert drawn.p == pytest.approx(exact.p, abs=0.005)


def test_it_is_wrong_as_rarely_as_it_says() -> None:
    draw = random.Random(2)
    tests = [sign_flip_test([draw.gauss(0, 1) for _ in range(6)]) for _ in range(2000)]
    share = fmean(test.p <= 0.05 for test in tests if test)
    assert share <= 0.05
