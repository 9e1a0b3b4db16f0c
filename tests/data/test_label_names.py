"""Labels: what is a list of them and what is not, and their weights."""

import pytest
import torch

from clusterformer.data.label_names import balanced_weights, refuse_lists, sorted_labels
from clusterformer.errors import InputError
from clusterformer.losses import cross_entropy


@pytest.mark.parametrize(
    "labels",
    [
        ["action", "comedy", "action,comedy"],
        ["action, comedy", "action", "comedy", "drama"],
        ["a;b", "a;c", "b;c", "a;b;c", "b;d", "a;d"],
        ["['x']", "['y']", "['x', 'y']"],
        ['["x"]', '["y"]', '["x","y"]'],
        ["x|y", "x", "y"],
        ["['x', 'y']", "z"],
    ],
)
def test_lists_of_labels_are_refused(labels: list[str]) -> None:
    with pytest.raises(InputError, match=r"label .* is a list of labels"):
        sorted_labels(labels)


@pytest.mark.parametrize(
    "labels",
    [
        ["Portland, OR", "Portland, ME", "Salem, OR", "Boston, MA"],
        ["positive, strong", "positive, weak", "negative, strong", "negative, weak"],
        ["yes", "no", "no, but", "well, maybe; later"],
        ["comp.os.ms-windows", "rec.autos"],
        ["0", "1"],
        ["a, b", "c"],
    ],
)
def test_honest_labels_with_commas_pass(labels: list[str]) -> None:
    refuse_lists(labels)


def test_a_label_that_may_be_a_list_is_named(caplog) -> None:
    refuse_lists(["a,b", "a", "c"])
    assert caplog.messages == [
        "label 'a,b' counts as one label, though 'a' is a label too: a text has one label here"
    ]


def test_balanced_weights_give_every_label_the_same_say() -> None:
    given = ["a"] * 90 + ["b"] * 10
    weights = balanced_weights(["a", "b"], given)
    targets = torch.tensor([0] * 90 + [1] * 10)
    assert weights[targets].mean() == pytest.approx(1)
    logits = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    total, count = cross_entropy(logits, targets, weights=weights)
    plain = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    expected = (plain[:90].mean() + plain[90:].mean()) / 2
    assert total / count == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (["Yes", "no", "yes"], "labels 'Yes' and 'yes' count as 2 labels"),
        (["1", "1.0", "True", "0"], "labels '1' and '1.0' count as 2 labels"),
        (["th\xe9", "the\u0301", "the"], r"labels 'the\u0301' and 'th\xe9' count as 2 labels"),
        (["a", "a\u200b", "b"], r"labels 'a' and 'a\u200b' count as 2 labels"),
        (["very  good", "very good"], "labels 'very  good' and 'very good' count as 2"),
        (["a", "\xe4", "1", "1.5", "nan", "inf", "-", "\u65e5\u672c", "+", ""], None),
        (["12345678901234567890", "12345678901234567891"], None),
    ],
)
def test_labels_that_look_the_same_are_told(
    labels: list[str], told: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert sorted_labels(labels) == sorted(labels)
    assert len(caplog.messages) == (told is not None)
    assert told is None or told in caplog.text
