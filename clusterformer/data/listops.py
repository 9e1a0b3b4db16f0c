"""ListOps: nested lists of digits to be evaluated (Nangia and Bowman, 2018), generated.

    [MAX 4 [MIN 8 5 2 ] 1 [SM 6 7 ] ]   ->   5

Operators: MIN, MAX, MED (median, halves rounded down) and SM (sum modulo 10), so
the value is one of ten digits. As in Long Range Arena (Tay et al., 2021), operator and opening
bracket are one token.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

from clusterformer.data.labelled_text import Row
from clusterformer.errors import require_at_least

LABELS = [str(digit) for digit in range(10)]
MAX_ARGUMENTS = 10
MAX_DEPTH = 10

_OPERATORS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(median(values)),
    "[SM": lambda values: sum(values) % 10,
}
_SHORTEST = 4  # tokens of a list: operator, two arguments, closing bracket


def generate(count: int, length: int, *, seed: str) -> list[Row]:
    """Generate expressions with their values.

    Args:
        count: Number of expressions.
        length: Maximum number of tokens; most expressions have at least half as many.
        seed: Name of the stream; expression i of a stream is always the same.
    """
    require_at_least(_SHORTEST, length=length)
    rows = []
    for index in range(count):
        draw = random.Random(f"{seed} {index}")
        tokens, value = _expression(draw, draw.randint(max(_SHORTEST, length // 2), length), 1)
        rows.append(Row(" ".join(tokens), str(value), f"listops {seed}:{index}"))
    return rows


def _expression(draw: random.Random, budget: int, depth: int) -> tuple[list[str], int]:
    """Make an expression of at most `budget` tokens: its tokens and its value."""
    if budget < _SHORTEST or depth > MAX_DEPTH:
        digit = draw.randrange(10)
        return [str(digit)], digit
    operator = draw.choice(list(_OPERATORS))
    inside = budget - 2
    cuts = draw.sample(range(1, inside), draw.randint(2, min(MAX_ARGUMENTS, inside)) - 1)
    tokens, values, spare = [operator], [], 0
    for start, stop in pairwise([0, *sorted(cuts), inside]):
        argument, value = _expression(draw, stop - start + spare, depth + 1)
        spare += stop - start - len(argument)
        tokens += argument
        values.append(value)
    return [*tokens, "]"], _OPERATORS[operator](values)
