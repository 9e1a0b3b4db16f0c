"""The clustering losses against their equations, and their bounds."""

import pytest
import torch
import torch.nn.functional as F

from clusterformer.attention import Grouping
from clusterformer.losses import (
    IGNORE,
    auxiliary,
    clustering_loss,
    cross_entropy,
    mechanism_loss,
    sorting_loss,
)


def grouping(similarity: str, scale: float = 1.0) -> tuple[Grouping, torch.Tensor]:
    points = torch.randn(2, 9, 6) * scale
    centroids = torch.randn(2, 4, 6) * scale
    mask = torch.arange(9) < torch.tensor([9, 5])[:, None]
    assignment = torch.randint(0, 4, (2, 9))
    found = Grouping(assignment, 4, points=points, centroids=centroids, similarity=similarity)
    return found, mask


def phi(similarity: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.cosine_similarity(a, b, dim=-1) if similarity == "cosine" else (a * b).sum(-1)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_is_summed_over_the_targets_that_count(smoothing: float) -> None:
    logits, target = torch.randn(2, 3, 4), torch.tensor([[0, 3, IGNORE], [1, IGNORE, 3]])
    for weights in (None, torch.tensor([1.0, 3.0, 0.5, 2.0])):
        each = torch.ones(4) if weights is None else weights
        expected = torch.tensor(0.0)
        for logit, label in zip(logits.flatten(0, 1), target.flatten().tolist(), strict=True):
            if label != IGNORE:
                surprise = -each * logit.log_softmax(0)
                expected += (1 - smoothing) * surprise[label] + smoothing * surprise.mean()
        found, count = cross_entropy(logits, target, smoothing, weights)
        torch.testing.assert_close(found, expected)
        assert count == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cross_entropy_of_many_logits_is_the_same_in_pieces(dtype: torch.dtype) -> None:
    target = torch.tensor([[7, IGNORE], [300_000, 1], [IGNORE, 299_999], [0, 5]])
    logits = torch.randn(4, 2, 400_000, dtype=dtype, requires_grad=True)  # two rows make a piece
    whole = logits.detach().clone().requires_grad_()
    found, _ = cross_entropy(logits, target)
    expected = F.cross_entropy(
        whole.flatten(0, 1).float(), target.flatten(), ignore_index=IGNORE, reduction="sum"
    )
    torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(found, logits)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, whole)[0])


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_bare_loss_is_equation_6(similarity: str) -> None:
    g, mask = grouping(similarity)
    for row, length in enumerate([9, 5]):
        expected = -sum(
            phi(similarity, g.points[row, j], g.centroids[row, g.assignment[row, j]])
            for j in range(length)
        )
        torch.testing.assert_close(clustering_loss(g, mask, "bare")[row], expected)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_sorting_loss_is_equation_11(similarity: str) -> None:
    g, _ = grouping(similarity)
    for row in range(2):
        c = g.centroids[row]
        expected = -(
            sum(phi(similarity, c[i], c[i - 1]) for i in range(1, 4)) + phi(similarity, c[0], c[3])
        )
        torch.testing.assert_close(sorting_loss(g)[row], expected / 4)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_contrastive_loss_is_cross_entropy_at_a_temperature_of_a_tenth(similarity: str) -> None:
    g, mask = grouping(similarity)
    inputs = [g.points.requires_grad_(), g.centroids.requires_grad_()]
    for row, length in enumerate([9, 5]):
        found, expected = clustering_loss(g, mask)[row], torch.tensor(0.0)
        for j in range(length):
            with_each = phi(similarity, g.points[row, j], g.centroids[row]) / 0.1
            expected = expected - with_each[g.assignment[row, j]] + with_each.logsumexp(0)
        torch.testing.assert_close(found, expected)
        gradients = (torch.autograd.grad(loss, inputs) for loss in (found, expected))
        for ours, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", ["contrastive", "bare", "bounded"])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_autocast_rounds_no_loss(similarity: str, form: str, dtype: torch.dtype) -> None:
    g, mask = grouping(similarity)
    expected = auxiliary([g], mask, form)
    with torch.autocast("cpu", dtype):
        found = auxiliary([g], mask, form)
    assert found.clustering.dtype is torch.float32
    assert found.clustering.equal(expected.clustering)
    assert found.sorting.equal(expected.sorting)


def test_the_cosine_bounds_both_losses() -> None:
    g, mask = grouping("cosine", scale=1e4)
    assert (clustering_loss(g, mask, "bare").abs() <= mask.sum(-1) + 1e-3).all()
    assert (sorting_loss(g).abs() <= 1 + 1e-6).all()


def test_the_bounded_form_is_the_cosine_of_inner_products_vectors() -> None:
    """The letter falls without end as vectors grow; bounded, it is that of the cosine."""
    g, mask = grouping("dot", scale=1e3)
    by_cosine = g._replace(similarity="cosine")
    torch.testing.assert_close(
        clustering_loss(g, mask, "bounded"), clustering_loss(by_cosine, mask, "bare")
    )
    torch.testing.assert_close(sorting_loss(g, "bounded"), sorting_loss(by_cosine))
    assert sorting_loss(g).abs().max() > 1e3
    assert auxiliary([g], mask, "bounded").sorting.abs() <= 2 + 1e-6


def test_the_contrastive_loss_keeps_clusters_apart() -> None:
    """Centroids that all agree satisfy the bare loss and cost the contrastive one log C."""
    direction = F.normalize(torch.randn(6), dim=0)
    g = Grouping(
        torch.randint(0, 4, (1, 9)), 4, points=direction.expand(1, 9, 6),
        centroids=direction.expand(1, 4, 6),
    )  # fmt: skip
    mask = torch.ones(1, 9, dtype=torch.bool)
    torch.testing.assert_close(clustering_loss(g, mask, "bare"), torch.tensor([-9.0]))
    expected = 9 * torch.tensor([4.0]).log()
    torch.testing.assert_close(clustering_loss(g, mask, "contrastive"), expected)


def test_padding_and_empty_sequences_cost_nothing() -> None:
    g, mask = grouping("cosine")
    mask[1] = False
    filled = g._replace(points=g.points.masked_fill(~mask[..., None], float("nan")))
    total = auxiliary([filled, None], mask)
    single = Grouping(*(t[:1] if torch.is_tensor(t) else t for t in g))
    expected = auxiliary([single], mask[:1])
    torch.testing.assert_close(total.clustering, expected.clustering)
    torch.testing.assert_close(total.sorting, expected.sorting)


def test_layers_are_averaged_and_none_gives_none() -> None:
    g, mask = grouping("cosine")
    h, _ = grouping("cosine")
    both = auxiliary([g, None, h], mask)
    apart = [auxiliary([x], mask) for x in (g, h)]
    torch.testing.assert_close(both.clustering, (apart[0].clustering + apart[1].clustering) / 2)
    assert auxiliary([None, None], mask).clustering is None


def test_the_sorting_loss_of_sequences_that_another_process_counts_is_left_out() -> None:
    g, mask = grouping("cosine")
    both, first = auxiliary([g], mask), auxiliary([g], mask, sequences=torch.tensor([True, False]))
    torch.testing.assert_close(first.sorting, sorting_loss(g, "contrastive")[0])
    torch.testing.assert_close(first.clustering, both.clustering)


def test_the_mechanisms_own_losses_are_averaged_over_the_layers_that_have_one() -> None:
    g, _ = grouping("cosine")
    found = [g._replace(loss=torch.tensor(x)) for x in ([1.0, 2.0], [5.0, 4.0])]
    assert mechanism_loss([found[0], None, g, found[1]]) == 6  # of 3 and 9
    assert mechanism_loss([None, g]) is None


def test_an_unknown_form_is_refused() -> None:
    g, mask = grouping("cosine")
    with pytest.raises(ValueError, match='"bare" or "bounded", got \'soft\''):
        clustering_loss(g, mask, "soft")


def test_what_is_no_list_of_groupings_is_refused() -> None:
    g, mask = grouping("cosine")
    for wrong in (g, [(g.points, g)]):
        for loss in (lambda wrong: auxiliary(wrong, mask), mechanism_loss):
            with pytest.raises(ValueError, match="groupings must be a list with the Grouping"):
                loss(wrong)


def test_a_mask_that_does_not_fit_is_refused() -> None:
    g, mask = grouping("cosine")
    for wrong in (None, mask.float(), mask[:1], mask[:, :8]):
        with pytest.raises(ValueError, match=r"mask must be bool \(2, 9\), True at real"):
            auxiliary([g], wrong)


def test_a_grouping_that_learns_nothing_has_no_clustering_loss() -> None:
    g, mask = grouping("cosine")
    for loss in (lambda g: clustering_loss(g, mask), sorting_loss):
        with pytest.raises(ValueError, match="without points and centroids has no clustering loss"):
            loss(g._replace(points=None, centroids=None))
