"""Held-out parts of own files: training has every label, however rare."""

import pytest

from clusterformer.data.holding_out import hold_out, hold_out_pairs
from clusterformer.data.labelled_text import Row, TextPair
from clusterformer.data.named_sets import SPLITS
from clusterformer.errors import InputError

HELD_OUT = ("valid", "test")


@pytest.mark.parametrize("copies", [1, 2])
def test_a_rare_label_of_texts_trains(copies: int) -> None:
    rows = [Row(f"text {i}", "xy"[i % 2], "") for i in range(100)]
    rare = [Row(f"odd {i} {n}", f"a{i}", "") for i in range(20) for n in range(copies)]
    parts = [hold_out(rows + rare, split, HELD_OUT) for split in SPLITS]
    assert {row.label for part in parts[1:] for row in part} <= {row.label for row in parts[0]}
    assert sorted(row for part in parts for row in part) == sorted(rows + rare)
    assert all(len(part) >= 10 for part in parts)


def test_a_label_that_only_copies_have_trains_with_them() -> None:
    rows = [Row(f"text {i}", "xy"[i % 2], "") for i in range(100)]
    rows += [Row(f"Text {i}!", f"odd {i}", "") for i in range(20)]
    train, *others = (hold_out(rows, split, HELD_OUT) for split in SPLITS)
    assert {row.label for part in others for row in part} <= {row.label for row in train}


def test_labels_of_one_text_each_are_too_few_to_hold_out() -> None:
    rows = [Row(f"text {i}", f"{i / 7:.3f}", f"t.csv:{i + 2}") for i in range(30)]
    with pytest.raises(InputError, match=r"^t.csv:2: too few different texts, 30 of 30 labels, to"):
        hold_out(rows, "valid", HELD_OUT)


def _linked() -> list[TextPair]:
    """Groups of three pairs that share a text; every third group has a label of its own."""
    labels = [label for i in range(60) for label in ("x", "y", "xy"[i % 2] if i % 3 else f"a{i}")]
    return [TextPair(f"first {i // 3}", f"second {i}", label, "") for i, label in enumerate(labels)]


def test_a_rare_label_of_linked_pairs_trains() -> None:
    parts = [hold_out_pairs(_linked(), split, HELD_OUT) for split in SPLITS]
    assert {pair.label for part in parts[1:] for pair in part} <= {pair.label for pair in parts[0]}
    assert all(len(part) >= 6 for part in parts)
    firsts = [{pair.first for pair in part} for part in parts]
    assert sum(map(len, firsts)) == len(set.union(*firsts)) == 60


def test_the_answers_to_a_question_stay_together() -> None:
    pairs = [TextPair(f"a {i}", f"b {i}", "01"[i % 2], "", f"q {i // 4}") for i in range(160)]
    parts = [hold_out_pairs(pairs, split, HELD_OUT) for split in SPLITS]
    assert [len(part) for part in parts] == [128, 16, 16]
    assert sum(len({pair.group for pair in part}) for part in parts) == 40


def test_scores_of_pairs_may_be_held_out() -> None:
    pairs = [TextPair(f"a {i}", f"b {i}", f"{i / 7:.3f}", "") for i in range(200)]
    parts = [hold_out_pairs(pairs, split, HELD_OUT, scored=True) for split in SPLITS]
    assert [len(part) for part in parts] == [160, 20, 20]


@pytest.mark.parametrize("scores", [30, 60, 90])
def test_few_scores_of_pairs_may_be_held_out(scores: int) -> None:
    pairs = [TextPair(f"a {i}", f"b {i}", f"{i % scores / 7:.3f}", "") for i in range(90)]
    parts = [hold_out_pairs(pairs, split, HELD_OUT, scored=True) for split in SPLITS]
    assert [len(part) for part in parts] == [72, 9, 9]


def test_many_labels_of_few_pairs_may_be_held_out() -> None:
    pairs = [TextPair(f"a {i}", f"b {i}", f"{i % 50}", "") for i in range(200)]
    train, *others = (hold_out_pairs(pairs, split, HELD_OUT) for split in SPLITS)
    assert all(len(part) >= 18 for part in others)
    assert len({pair.label for pair in train}) == 50


def test_labels_of_one_group_of_pairs_are_too_few_to_hold_out() -> None:
    pairs = [TextPair(f"a {i % 4}", f"b {i}", f"{i % 4}", f"t.csv:{i + 2}") for i in range(40)]
    with pytest.raises(InputError, match=r"^t.csv:2: too few pairs of a label, 40 of 4 labels, to"):
        hold_out_pairs(pairs, "train", HELD_OUT)
