"""Several clusterings, each with a share of the heads of its own."""

import pytest
import torch

from clusterformer.attention import MultiHeadAttention, NeuralClusteringAttention
from clusterformer.losses import auxiliary

FORMS = [
    {"num_clusters": 5},
    {"num_clusters": 5, "min_width": 3, "look_ahead": 0},
    {"num_clusters": 3, "causal": True, "chunk_size": 4},
    {"num_clusters": 3, "causal": True, "chunk_size": 4, "dense_length": 7},
    {"num_clusters": 5, "causal": "masked"},
    {"block_size": 3, "dense_length": 0, "global_tokens": 1},
    {"block_size": 3, "dense_length": 9, "local_heads": 2, "local_window": 3},
]


def parts_of(core: NeuralClusteringAttention, options: dict) -> list[NeuralClusteringAttention]:
    """A core for each clustering, which has its weights and as many heads as it has."""
    count, width = core.num_clusterings, core.space.out_features // core.num_clusterings
    heads = (core.num_heads - core.local_heads) // count
    made = []
    for part in range(count):
        options = {**options, "local_heads": 0}
        one = NeuralClusteringAttention(heads * core.head_width, heads, **options)
        one.space.weight.data = core.space.weight.data[part * width : (part + 1) * width]
        assert one.centroids is not None
        assert core.centroids is not None
        one.centroids.data, one.log_alpha = core.centroids.data[part], core.log_alpha
        made.append(one)
    return made


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("options", FORMS, ids=str)
def test_each_is_a_layer_with_its_share_of_the_heads(options: dict, padded: bool) -> None:
    torch.manual_seed(0)
    heads = 4 + options.get("local_heads", 0)
    core = NeuralClusteringAttention(8 * heads, heads, num_clusterings=2, **options)
    q, k, v = torch.randn(3, 3, heads, 29, 8)
    hidden = torch.randn(3, 29, 8 * heads)
    mask = torch.arange(29) < torch.tensor([[29], [17], [6]]) if padded else None
    values, grouping = core(q, k, v, hidden=hidden, key_mask=mask)
    assert grouping.assignment.shape == (3, 2, 29)
    real = torch.ones(3, 29, dtype=torch.bool) if mask is None else mask
    local = core.local_heads
    for part, one in enumerate(parts_of(core, options)):
        share = slice(local + 2 * part, local + 2 * part + 2)
        expected, alone = one(q[:, share], k[:, share], v[:, share], hidden=hidden, key_mask=mask)
        torch.testing.assert_close(
            values[:, share].transpose(1, 2)[real], expected.transpose(1, 2)[real]
        )
        assert torch.equal(grouping.assignment[:, part][real], alone.assignment[real])


def test_losses_and_keys_are_means_over_clusterings() -> None:
    torch.manual_seed(0)
    core = NeuralClusteringAttention(32, 4, num_clusterings=2, num_clusters=5)
    heads, hidden = torch.randn(3, 3, 4, 29, 8), torch.randn(3, 29, 32)
    mask = torch.arange(29) < torch.tensor([[29], [17], [0]])
    _, grouping = core(*heads, hidden=hidden, key_mask=mask)
    parts = parts_of(core, {"num_clusters": 5})
    alone = [one(*heads[:, :, :2], hidden=hidden, key_mask=mask)[1] for one in parts]
    found, wanted = auxiliary([grouping], mask), [auxiliary([one], mask) for one in alone]
    for name in ("clustering", "sorting"):
        mean = torch.stack([getattr(one, name) for one in wanted]).mean()
        torch.testing.assert_close(getattr(found, name), mean)
    shares = [one.keys_seen(grouping, mask) for one, grouping in zip(parts, alone, strict=True)]
    torch.testing.assert_close(core.keys_seen(grouping, mask), torch.stack(shares).mean(0))


def test_the_loss_trains_each_clustering() -> None:
    torch.manual_seed(0)
    core = NeuralClusteringAttention(32, 4, num_clusterings=4, num_clusters=5)
    layer = MultiHeadAttention(core)
    layer(torch.randn(2, 29, 32)).values.square().sum().backward()
    assert (core.space.weight.grad.unflatten(0, (4, -1)).abs().amax((1, 2)) > 0).all()


def test_a_lower_layer_passes_its_centroids_on() -> None:
    lower, upper = (NeuralClusteringAttention(32, 4, num_clusterings=2) for _ in range(2))
    for core in (lower, upper):
        core.dense_length = 0
    upper.inherit()
    heads, hidden = torch.randn(3, 3, 4, 129, 8), torch.randn(3, 129, 32)
    _, grouping = lower(*heads, hidden=hidden)
    assert upper(*heads, hidden=hidden, previous=grouping)[0].isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_clusterings": 3}, "num_clusterings must divide the 4 heads that cluster, got 3"),
        ({"num_clusterings": 2, "local_heads": 1}, "must divide the 3 heads that cluster, got 2"),
        ({"num_clusterings": 0}, "num_clusterings must be at least 1, got 0"),
        ({"num_clusterings": 2, "coupling": False, "similarity": "dot"}, "need similarity="),
    ],
)
def test_senseless_numbers_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeuralClusteringAttention(32, 4, num_clusters=4, **options)
