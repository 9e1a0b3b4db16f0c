"""Full attention in some heads and a window in the others."""

import pytest
import torch

from clusterformer.attention import (
    FullAttention,
    MultiHeadAttention,
    NeuralClusteringAttention,
    PartlyLocalAttention,
)


def layer(**options) -> MultiHeadAttention:
    torch.manual_seed(1)
    return MultiHeadAttention(PartlyLocalAttention(16, 4, **options))


@pytest.mark.parametrize("causal", [False, True])
def test_without_local_heads_it_is_full_attention(causal: bool) -> None:
    partly = layer(causal=causal, local_heads=0)
    full = MultiHeadAttention(FullAttention(16, 4, causal=causal))
    full.load_state_dict(partly.state_dict())
    x, mask = torch.randn(2, 37, 16), torch.rand(2, 37) < 0.8
    torch.testing.assert_close(partly(x, mask).values[mask], full(x, mask).values[mask])


def test_its_local_heads_are_those_of_neural_clustering() -> None:
    partly = layer(causal=True, local_heads=4, local_window=5)
    options = {"num_clusters": 4, "local_heads": 4, "local_window": 5}
    clusters = NeuralClusteringAttention(16, 4, causal=True, **options)
    q, k, v = torch.randn(3, 2, 4, 33, 4)
    hidden = torch.randn(2, 33, 16)
    mask = torch.rand(2, 33) < 0.8
    ours, _ = partly.core(q, k, v, hidden=hidden, key_mask=mask)
    theirs, _ = clusters(q, k, v, hidden=hidden, key_mask=mask)
    mask = mask[:, None].expand(-1, 4, -1)
    torch.testing.assert_close(ours[mask], theirs[mask])


def test_a_local_head_sees_no_far_token_and_another_does() -> None:
    core = PartlyLocalAttention(8, 2, causal=True, local_heads=1, local_window=4)
    q, k = torch.randn(2, 1, 2, 20, 4)
    v = torch.randn(1, 2, 20, 4, requires_grad=True)
    mixed, _ = core(q, k, v, hidden=torch.randn(1, 20, 8))
    (grad,) = torch.autograd.grad(mixed[0, :, 17].sum(), v)
    seen = grad[0].abs().sum(-1) > 0
    assert seen[0].nonzero().flatten().tolist() == list(range(12, 18))
    assert seen[1].nonzero().flatten().tolist() == list(range(18))


@pytest.mark.parametrize("causal", [False, True])
def test_shifted_keys_are_the_keys_of_the_tokens_before(causal: bool) -> None:
    core = PartlyLocalAttention(16, 2, causal=causal, local_heads=1, shift_keys=True)
    full = FullAttention(16, 2, causal=causal)
    q, k, v = torch.randn(3, 1, 2, 20, 8)
    hidden, mask = torch.randn(1, 20, 16), torch.ones(1, 20, dtype=torch.bool)
    mask[0, [0, 1, 7, 12]] = False
    real = mask[0].nonzero().flatten()
    found, _ = core(q, k, v, hidden=hidden, key_mask=mask)
    query, key, value = (x[:, :, real] for x in (q, k, v))
    key = torch.stack([key[:, :, max(0, t - 1)] for t in range(len(real))], 2)
    expected, _ = full(query, key, value, hidden=hidden[:, real])
    torch.testing.assert_close(found[:, 1, real], expected[:, 1])
