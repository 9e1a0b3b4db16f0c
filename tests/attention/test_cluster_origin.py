"""Where clusters come from: learnt by the loss, random, or means of their tokens."""

from datetime import timedelta

import pytest
import torch
import torch.nn.functional as F
from forked import in_processes
from torch import Tensor

from clusterformer.attention import MultiHeadAttention, NeuralClusteringAttention


def test_random_clusters_stay_as_they_began() -> None:
    torch.manual_seed(0)
    core = NeuralClusteringAttention(16, 4, causal=True, num_clusters=3, clusters="random")
    trained = {name for name, _ in core.named_parameters()}
    assert trained == {"log_alpha"}
    free = NeuralClusteringAttention(16, 4, causal=True, num_clusters=3)
    free.load_state_dict(core.state_dict())
    heads, hidden = torch.randn(3, 2, 4, 33, 4), torch.randn(2, 33, 16)
    torch.testing.assert_close(core(*heads, hidden=hidden)[0], free(*heads, hidden=hidden)[0])


@pytest.mark.parametrize("causal", [False, True])
def test_centroids_of_k_means_are_the_means_of_their_tokens(causal: bool) -> None:
    torch.manual_seed(0)
    core = NeuralClusteringAttention(16, 4, causal=causal, num_clusters=3, clusters="k-means")
    layer = MultiHeadAttention(core)
    x, mask = (
        torch.randn(2, 33, 16, requires_grad=True),
        torch.arange(33) < torch.tensor([[33], [20]]),
    )
    out = layer(x, mask)
    out.values[mask].sum().backward()
    points = F.normalize(core.space(x), dim=-1)[mask].detach()
    clusters = out.grouping.assignment[mask]
    before = core.own_centroids().clone()
    layer.eval()(x, mask)
    assert torch.equal(core.own_centroids(), before)  # prediction moves nothing
    layer.train()(x, mask)
    assert len(clusters.unique()) == 3
    for cluster in range(3):
        mean = F.normalize(points[clusters == cluster].sum(0), dim=0)
        torch.testing.assert_close(core.own_centroids()[cluster], mean)


def test_k_means_learns_nothing_from_the_loss_and_its_state_is_kept() -> None:
    core = NeuralClusteringAttention(16, 4, num_clusters=3, clusters="k-means")
    trained = {name for name, _ in core.named_parameters()}
    assert trained == {"log_alpha"}
    heads, hidden = torch.randn(3, 2, 4, 33, 4), torch.randn(2, 33, 16)
    core(*heads, hidden=hidden)
    core(*heads, hidden=hidden)  # moves
    torch.manual_seed(9)
    other = NeuralClusteringAttention(16, 4, num_clusters=3, clusters="k-means")
    other.load_state_dict(core.state_dict())
    first, second = (made.eval()(*heads, hidden=hidden)[0] for made in (core, other))
    assert torch.equal(first, second)


def test_a_lower_layer_passes_its_means_on() -> None:
    cores = [NeuralClusteringAttention(16, 4, num_clusters=3, clusters="k-means") for _ in range(2)]
    cores[1].inherit()
    heads, hidden = torch.randn(3, 2, 4, 33, 4), torch.randn(2, 33, 16)
    _, grouping = cores[0](*heads, hidden=hidden)
    assert cores[1].own_centroids() is None
    values, _ = cores[1](*heads, hidden=hidden, previous=grouping)
    assert values.isfinite().all()


def k_means_step(rank: int, texts: list[Tensor], address: str) -> tuple[list, list]:
    """Centroids after a step with a text of each process, and a sum over processes behind it."""
    torch.distributed.init_process_group(
        "gloo", f"file://{address}", rank=rank, world_size=2, timeout=timedelta(seconds=20)
    )
    torch.manual_seed(0)
    options = {"num_clusters": 3, "dense_length": 20, "clusters": "k-means"}
    layer = MultiHeadAttention(NeuralClusteringAttention(16, 4, **options))
    total = sum(layer(texts[rank][None]).values.sum() for _ in range(2))
    counts = torch.ones(3, 16)
    torch.distributed.all_reduce(counts)
    total.backward()
    layer.core.means.move()
    torch.distributed.destroy_process_group()
    return layer.core.means.centroids.tolist(), counts.unique().tolist()


def test_a_process_whose_texts_are_all_short_keeps_in_step(tmp_path) -> None:
    """It has no tokens for the centroids, and the same centroids as the process that has some."""
    texts = [torch.randn(length, 16, requires_grad=True) for length in (33, 20)]
    first, second = in_processes(2, k_means_step, texts, str(tmp_path / "meeting"))
    assert first == second
    assert first[1] == [2.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusters": "kmeans"}, "clusters must be one of learnt, k-means, random; got 'kmeans'"),
        (
            {"clusters": "k-means", "similarity": "dot", "coupling": False},
            'clusters="k-means" need similarity="cosine"',
        ),
    ],
)
def test_another_origin_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeuralClusteringAttention(16, 4, num_clusters=3, **options)
