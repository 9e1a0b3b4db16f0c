"""Exploration: clusters are drawn in training, nearest otherwise, and no token reads ahead."""

import pytest
import torch

from clusterformer.attention import MultiHeadAttention, NeuralClusteringAttention
from clusterformer.kernels.grouping import explore


def layer(exploration: float, **options) -> MultiHeadAttention:
    torch.manual_seed(0)
    return MultiHeadAttention(
        NeuralClusteringAttention(
            16, 2, num_clusters=4, exploration=exploration, **{"chunk_size": 4, **options}
        )
    )


def test_with_scale_1_clusters_are_drawn_by_membership() -> None:
    torch.manual_seed(0)
    points, anchors = torch.randn(1, 3, 5), torch.randn(4, 5)
    drawn = explore(points.expand(20_000, -1, -1), anchors, 1.0)  # (20,000, 3)
    shares = torch.stack([(drawn == cluster).float().mean(0) for cluster in range(4)])
    expected = (anchors @ points[0].T).softmax(0)
    torch.testing.assert_close(shares, expected, atol=0.015, rtol=0)


def test_a_small_scale_takes_the_nearest() -> None:
    torch.manual_seed(0)
    points, anchors = torch.randn(2, 30, 5), torch.randn(2, 4, 5)
    nearest = (anchors @ points.transpose(1, 2)).argmax(1)
    assert torch.equal(explore(points, anchors, 1e-6), nearest)


@pytest.mark.parametrize("causal", [False, True, "masked"])
def test_only_training_explores(causal) -> None:
    exploring, plain = layer(3.0, causal=causal), layer(0.0, causal=causal)
    x = torch.randn(2, 40, 16)
    expected = plain(x)
    assert torch.equal(exploring.eval()(x).values, expected.values)
    trained = exploring.train()(x)
    assert not torch.equal(trained.values, expected.values)
    assert torch.equal(trained.grouping.assignment, expected.grouping.assignment)  # of the losses
    torch.manual_seed(5)
    first = exploring(x).values
    torch.manual_seed(5)
    assert torch.equal(exploring(x).values, first)


@pytest.mark.parametrize("causal", [False, True, "masked"])
def test_hardly_any_noise_takes_the_nearest_centroid(causal) -> None:
    """The largest S, where evaluation of the forms that are not strict takes the largest U."""
    exploring, x = layer(1e-6, causal=causal).train(), torch.randn(2, 40, 16)
    points, anchors = exploring.core.anchors(x, None)
    nearest = (points @ anchors.T).argmax(2)
    found, expected = exploring(x).grouping.blocks, exploring.core.blocks_of(nearest, None)
    assert torch.equal(found.members, expected.members)
    evaluated = exploring.eval()(x).grouping.assignment
    assert torch.equal(evaluated, nearest) is (causal is True)


def test_a_strict_layer_that_explores_does_not_read_ahead() -> None:
    exploring = layer(3.0, causal=True)
    x = torch.randn(1, 40, 16)
    other = torch.cat([x[:, :25], torch.randn(1, 15, 16)], 1)
    torch.manual_seed(5)
    first = exploring(x).values
    torch.manual_seed(5)
    assert torch.equal(exploring(other).values[:, :25], first[:, :25])


@pytest.mark.parametrize("scale", [-1.0, float("inf"), float("nan")])
def test_a_senseless_scale_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match=r"exploration must be (at least 0|finite), got"):
        layer(scale)
