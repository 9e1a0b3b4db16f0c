"""Centroids that follow the tokens of training: when they move, and whereto."""

import copy

import pytest
import torch
import torch.nn.functional as F
from default_dtype import default_dtype
from forked import in_processes
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from clusterformer.attention import MultiHeadAttention, RoutingAttention
from clusterformer.clustering.spherical import SphericalMeans


def routing(causal: object = False) -> MultiHeadAttention:
    core = RoutingAttention(16, 2, causal=causal, num_clusters=3, local_heads=0, decay=0.9)
    return MultiHeadAttention(core).train()


def observe(means: SphericalMeans, points: Tensor, mask: Tensor | None = None) -> None:
    means.move()
    means.observe(points, means(points).argmax(2), mask, points)


def test_centroids_go_to_the_mean_direction_of_their_tokens() -> None:
    means = SphericalMeans(2, 3, 5, decay=0.75, seed=0)
    expected = means.centroids.clone()
    for turn in range(6):
        points = F.normalize(torch.randn(4, 2, 20, 5), dim=-1)
        observe(means, points)
        means.move()
        share = max(1 / (turn + 1), 0.25)
        nearest = (expected @ points.transpose(-1, -2)).argmax(2)
        for head in range(2):
            for cluster in range(3):
                mine = points[:, head][nearest[:, head] == cluster]
                if len(mine):
                    moved = (1 - share) * expected[head, cluster]
                    moved = moved + share * F.normalize(mine.sum(0), dim=0)
                    expected[head, cluster] = F.normalize(moved, dim=0)
        torch.testing.assert_close(means.centroids, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_moves_them_as_float32_does(dtype: torch.dtype) -> None:
    """300 moves: bfloat16 counts to 256, and knows no step of 1 - decay = 0.001."""
    whole, half = (SphericalMeans(2, 3, 5, decay=0.999, seed=0) for _ in range(2))
    half.to(dtype)
    points = F.normalize(torch.randn(300, 1, 2, 20, 5), dim=-1)
    points[:150, ..., 0].abs_()
    for batch in points:
        for means in (whole, half):
            means.move()
            means.observe(batch, whole(batch).argmax(2), None, batch)
    assert half.moves == whole.moves == 299
    torch.testing.assert_close(half.centroids.float(), whole.centroids, atol=1e-3, rtol=0)


def test_centroids_are_the_same_in_half_precision() -> None:
    whole, cast = (SphericalMeans(2, 3, 5, decay=0.999, seed=0) for _ in range(2))
    torch.testing.assert_close(cast.bfloat16().centroids, whole.centroids, atol=0, rtol=0)
    with default_dtype(torch.bfloat16):
        made = SphericalMeans(2, 3, 5, decay=0.999, seed=0)
    assert made.centroids.dtype == made.observed.dtype == torch.float32
    emptied = whole.to("meta").to_empty(device="cpu")
    assert emptied.centroids.shape == (2, 3, 5)


def test_a_centroid_without_tokens_stays_in_half_precision() -> None:
    means = SphericalMeans(1, 3, 5, decay=0.9, seed=0).half()
    before = means.centroids.clone()
    batch = F.normalize(torch.randn(1, 1, 20, 5), dim=-1)
    means.observe(batch, torch.zeros(1, 1, 20, dtype=torch.long), None, batch)
    means.move()
    torch.testing.assert_close(means.centroids[0, 1:], before[0, 1:], atol=1e-3, rtol=0)
    assert not torch.equal(means.centroids[0, 0], before[0, 0])


def test_settled_centroids_move_as_late_ones_do() -> None:
    points = F.normalize(torch.randn(1, 1, 9, 5), dim=-1)
    means = SphericalMeans(1, 1, 5, decay=0.75, seed=0)
    observe(means, -points)
    means.settle()  # what was observed does not move them either
    start = means.centroids.clone()
    observe(means, points)
    means.move()
    moved = 0.75 * start[0, 0] + 0.25 * F.normalize(points[0, 0].sum(0), dim=0)
    torch.testing.assert_close(means.centroids[0, 0], F.normalize(moved, dim=0))


def test_checkpoints_whose_count_is_a_float_load() -> None:
    means = SphericalMeans(1, 3, 5, decay=0.9, seed=0)
    means.load_state_dict({**means.state_dict(), "moves": torch.tensor(7.0)})
    assert means.moves == 7
    assert not means.moves.is_floating_point()


def test_a_mean_of_checkpoints_compares_by_the_cosine() -> None:
    means = SphericalMeans(1, 3, 5, decay=0.9, seed=0)
    points = F.normalize(torch.randn(1, 1, 20, 5), dim=-1)
    expected = means(points)
    means.centroids.mul_(torch.tensor([0.5, 0.9, 1.0])[:, None])
    torch.testing.assert_close(means(points), expected)


def test_they_find_clusters_that_are_there() -> None:
    centres = F.normalize(torch.randn(4, 8), dim=-1)
    means = SphericalMeans(1, 4, 8, decay=0.9, seed=1)
    for _ in range(20):
        points = centres.repeat(16, 1) + 0.05 * torch.randn(64, 8)
        observe(means, F.normalize(points, dim=-1)[None, None])
    means.move()
    assert (centres @ means.centroids[0].T).amax(1).mean() > 0.9


def test_padding_and_broken_tokens_move_nothing() -> None:
    points = F.normalize(torch.randn(2, 2, 9, 5), dim=-1)
    mask = torch.arange(9) < torch.tensor([9, 4])[:, None]
    clean, spoilt = (SphericalMeans(2, 3, 5, decay=0.9, seed=0) for _ in range(2))
    noise = points.masked_fill(~mask[:, None, :, None], 7.0)
    for means, x in ((clean, points), (spoilt, noise)):
        observe(means, x, mask)
    assert torch.equal(clean.observed, spoilt.observed)
    noise[0, 1, 3] = float("nan")
    observe(spoilt, noise, mask)
    spoilt.move()
    assert spoilt.centroids.isfinite().all()


@pytest.mark.parametrize("causal", [False, True, "masked"])
def test_they_move_in_training_alone_and_not_by_gradients(causal) -> None:
    layer = routing(causal)
    assert not any("means" in name for name, _ in layer.named_parameters())
    before = layer.core.means.centroids.clone()
    layer.eval()
    for _ in range(2):
        layer(torch.randn(2, 20, 16))
    assert torch.equal(layer.core.means.centroids, before)
    assert not layer.core.means.observed.any()
    layer.train()
    for _ in range(2):
        layer(torch.randn(2, 20, 16)).values.sum().backward()
    assert not torch.equal(layer.core.means.centroids, before)


def trained(layer: MultiHeadAttention, recompute: bool, calls: int) -> list[Tensor]:
    """Three steps; in each, so many calls before the backward pass."""
    torch.manual_seed(5)
    for _ in range(3):
        texts = torch.randn(calls, 2, 40, 16)
        outs = [checkpoint(layer, x, use_reentrant=False) if recompute else layer(x) for x in texts]
        torch.stack([out.values.square().sum() for out in outs]).sum().backward()
    return [*(p.grad for p in layer.parameters()), *layer.buffers()]


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("causal", [False, True, "masked"])
def test_recomputing_in_the_backward_pass_changes_nothing(causal, calls: int) -> None:
    first = routing(causal)
    second = copy.deepcopy(first)
    for ours, theirs in zip(
        trained(first, True, calls), trained(second, False, calls), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert first.core.means.moves == 2


def test_a_checkpoint_carries_what_is_still_to_move() -> None:
    texts = torch.randn(4, 2, 40, 16)
    whole = routing()
    killed = copy.deepcopy(whole)
    for x in texts:
        whole(x).values.sum().backward()
    for x in texts[:2]:
        killed(x).values.sum().backward()
    resumed = routing()
    resumed.load_state_dict(killed.state_dict())
    for x in texts[2:]:
        resumed(x).values.sum().backward()
    for ours, theirs in zip(resumed.buffers(), whole.buffers(), strict=True):
        assert torch.equal(ours, theirs)


def share(rank: int, points: Tensor, address: str) -> list:
    """Centroids after a step in which each of two processes saw half of the points."""
    torch.distributed.init_process_group("gloo", f"file://{address}", rank=rank, world_size=2)
    means = SphericalMeans(2, 3, 5, decay=0.9, seed=0)
    observe(means, points[rank::2])
    means.move()
    torch.distributed.destroy_process_group()
    return means.centroids.tolist()


def test_processes_move_them_as_one(tmp_path) -> None:
    points = F.normalize(torch.randn(6, 2, 9, 5), dim=-1)
    alone = SphericalMeans(2, 3, 5, decay=0.9, seed=0)
    observe(alone, points)
    alone.move()
    for centroids in in_processes(2, share, points, str(tmp_path / "meeting")):
        torch.testing.assert_close(torch.tensor(centroids), alone.centroids)
