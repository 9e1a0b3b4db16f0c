"""Attention within groups by centroids: who sees whom, limits, and what trains the centroids."""

import pytest
import torch

from clusterformer.attention import CentroidAttention, FullAttention, MultiHeadAttention


@pytest.mark.parametrize("causal", [False, True])
def test_equals_a_token_by_token_version(causal: bool) -> None:
    core = CentroidAttention(16, 2, causal=causal, num_clusters=3, window=3).eval()
    x, (q, k, v) = torch.randn(1, 19, 16), torch.randn(3, 1, 2, 19, 8).unbind()
    with torch.no_grad():
        found, grouping = core(q, k, v, hidden=x)
        points, centroids = (torch.nn.functional.normalize(y, dim=-1) for y in (x, core.centroids))
        members = (points[0] @ centroids.T / core.temperature).log_softmax(-1)
    gate, group = members.max(-1)
    for t in range(19):
        seen = [s for s in range(t + 1 if causal else 19) if abs(s - t) < 3 or group[s] == group[t]]
        assert grouping.counts[0, t] == len(seen)
        bias = torch.tensor([0.0 if abs(s - t) < 3 else float(gate[s]) for s in seen])
        for head in range(2):
            logits = k[0, head, seen] @ q[0, head, t] / 8**0.5 + bias
            expected = logits.softmax(0) @ v[0, head, seen]
            torch.testing.assert_close(found[0, head, t], expected)


@pytest.mark.parametrize("options", [{"num_clusters": 1, "window": 2}, {"window": 29}])
@pytest.mark.parametrize("causal", [False, True])
def test_one_group_or_a_whole_window_is_full_attention(causal: bool, options) -> None:
    q, k, v = torch.randn(3, 2, 4, 29, 8).unbind()
    hidden, mask = torch.randn(2, 29, 32), torch.rand(2, 29) < 0.8
    found, _ = CentroidAttention(32, 4, causal=causal, **options)(
        q, k, v, hidden=hidden, key_mask=mask
    )
    full, _ = FullAttention(32, 4, causal=causal)(q, k, v, hidden=hidden, key_mask=mask)
    found, full = (x.transpose(1, 2)[mask] for x in (found, full))
    torch.testing.assert_close(found, full)


def test_the_task_trains_the_centroids() -> None:
    layer = MultiHeadAttention(CentroidAttention(16, 2, causal=True, num_clusters=3, window=2))
    layer(torch.randn(2, 21, 16)).values.square().sum().backward()
    assert layer.core.centroids.grad.abs().sum() > 0


def test_the_loss_of_its_own_balances_the_groups() -> None:
    torch.manual_seed(0)
    core = CentroidAttention(16, 2, num_clusters=4, balance=1.0)
    core.centroids.data[1:] *= 0
    core.centroids.data[1:] -= core.centroids.data[0] + 0.1 * torch.randn(3, 16)
    x = torch.randn(4, 64, 16) + core.centroids.data[0]
    q, k, v = torch.randn(3, 4, 2, 64, 8).unbind()

    def largest() -> float:
        assignment = core(q, k, v, hidden=x)[1].assignment
        return float(assignment.flatten().bincount(minlength=4).max()) / assignment.numel()

    before = largest()
    optimizer = torch.optim.Adam(core.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        core(q, k, v, hidden=x)[1].loss.mean().backward()
        optimizer.step()
    assert before > 0.9
    assert largest() < 0.5


def test_the_loss_compares_memberships_with_balanced_ones_of_the_real_tokens() -> None:
    core = CentroidAttention(16, 2, num_clusters=3, balance=0.3)
    q, k, v = torch.randn(3, 2, 2, 19, 8).unbind()
    x, mask = torch.randn(2, 19, 16), torch.rand(2, 19) < 0.6
    found = core(q, k, v, hidden=x, key_mask=mask)[1].loss
    for row in range(2):
        points, centroids = (
            torch.nn.functional.normalize(y, dim=-1) for y in (x[row, mask[row]], core.centroids)
        )
        scores = points @ centroids.T / core.temperature
        balanced = scores.exp().detach()
        for _ in range(3):  # Sinkhorn
            balanced = balanced / balanced.sum(0)
            balanced = balanced / balanced.sum(1, keepdim=True)
        expected = -0.3 * (balanced * scores.log_softmax(1)).sum()
        torch.testing.assert_close(found[row], expected)


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"balance": -1.0}, {"window": 0}])
def test_impossible_options_are_refused(options) -> None:
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=f"{name} must be .*, got {value}"):
        CentroidAttention(8, 2, **options)
