"""ListOps: the values are right, the lengths as asked, the stream always the same."""

from collections import Counter
from statistics import median

import pytest

from clusterformer.data.listops import MAX_DEPTH, generate
from clusterformer.errors import InputError

OPERATORS = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(median(values)),
    "[SM": lambda values: sum(values) % 10,
}


def evaluate(text):
    """Read the value back from the text, as a reader of the paper would."""
    stack = [("", [])]
    for token in text.split():
        if token in OPERATORS:
            stack.append((token, []))
        elif token == "]":
            operator, values = stack.pop()
            stack[-1][1].append(OPERATORS[operator](values))
        else:
            stack[-1][1].append(int(token))
    return stack[0][1][0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[MAX 4 [MIN 8 5 2 ] 1 [SM 6 7 ] ]", 4),
        ("[SM 6 7 ]", 3),
        ("[MED 1 2 ]", 1),
        ("[MED 9 2 4 ]", 4),
        ("[MED 1 2 5 9 ]", 3),
        ("7", 7),
    ],
)
def test_operators_give_their_values(text, value):
    assert evaluate(text) == value


@pytest.mark.parametrize("length", [4, 5, 17, 200])
def test_labels_are_the_values_and_lengths_stay_within_the_limit(length):
    rows = generate(100, length, seed="x")
    lengths = [len(row.text.split()) for row in rows]
    assert [row.label for row in rows] == [str(evaluate(row.text)) for row in rows]
    assert max(lengths) <= length
    assert min(lengths) >= min(4, length // 2 - 4)


def test_nesting_is_deep_but_limited():
    def depth(text):
        level = deepest = 0
        for token in text.split():
            level += (token[0] == "[") - (token == "]")
            deepest = max(deepest, level)
        return deepest

    assert 3 < max(depth(row.text) for row in generate(50, 400, seed="x")) <= MAX_DEPTH


def test_every_digit_occurs_as_a_label():
    assert len(Counter(row.label for row in generate(500, 60, seed="x"))) == 10


def test_streams_are_reproducible_and_differ():
    assert generate(5, 50, seed="x") == generate(9, 50, seed="x")[:5]
    texts = {row.text for name in "xy" for row in generate(20, 50, seed=name)}
    assert len(texts) == 40


def test_length_below_the_shortest_list_is_refused():
    with pytest.raises(InputError, match="at least 4, got 3"):
        generate(1, 3, seed="x")
