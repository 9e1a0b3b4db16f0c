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
