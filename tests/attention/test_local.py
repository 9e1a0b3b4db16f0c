"""A sliding window of exact width, and full attention where it is wide enough."""

import pytest
import torch
import torch.nn.functional as F

from clusterformer.attention import FullAttention, LocalAttention, MultiHeadAttention


def like(core: LocalAttention) -> tuple[MultiHeadAttention, MultiHeadAttention]:
    """Layers of the same weights, local and full."""
    local = MultiHeadAttention(core)
    full = MultiHeadAttention(FullAttention(core.d_model, core.num_heads, causal=core.causal))
    full.load_state_dict(local.state_dict())
    return local, full


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 2, 3, 4, 7, 8, 40])
@pytest.mark.parametrize("length", [1, 5, 23])
def test_a_token_sees_exactly_its_window(causal: bool, window: int, length: int) -> None:
    q, k, v = torch.randn(3, 2, 4, length, 6)
    core = LocalAttention(24, 4, causal=causal, window=window)
    mixed, _ = core(q, k, v, hidden=torch.empty(2, length, 24))
    distance = torch.arange(length)[:, None] - torch.arange(length)
    near = distance.abs() < window
    expected = F.scaled_dot_product_attention(
        q, k, v, attn_mask=near & (distance >= 0) if causal else near
    )
    torch.testing.assert_close(mixed, expected)


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_of_the_whole_text_is_full_attention(causal: bool) -> None:
    local, full = like(LocalAttention(24, 4, causal=causal, window=19))
    x = torch.randn(3, 19, 24)
    mask = torch.arange(19) < torch.tensor([19, 8, 1])[:, None]
    torch.testing.assert_close(local(x, mask).values[mask], full(x, mask).values[mask])


def test_gradients_are_those_of_the_masked_softmax() -> None:
    tensors = [x.requires_grad_() for x in torch.randn(3, 1, 2, 13, 4).unbind(0)]
    core = LocalAttention(8, 2, causal=True, window=4)
    mixed, _ = core(*tensors, hidden=torch.empty(1, 13, 8))
    distance = torch.arange(13)[:, None] - torch.arange(13)
    mask = (distance >= 0) & (distance < 4)
    expected = F.scaled_dot_product_attention(*tensors, attn_mask=mask)
    weight = torch.randn_like(mixed)
    ours = torch.autograd.grad((mixed * weight).sum(), tensors)
    theirs = torch.autograd.grad((expected * weight).sum(), tensors)
    torch.testing.assert_close(ours, theirs)


def test_the_cache_does_not_grow() -> None:
    layer = MultiHeadAttention(LocalAttention(24, 4, causal=True, window=5))
    cache = layer.cache(torch.empty(2, 1, 24))
    sizes = [tensor.shape for tensor in cache]
    with torch.no_grad():
        for token in torch.randn(2, 12, 24).split(1, 1):
            _, cache = layer.step(token, cache)
    assert [tensor.shape for tensor in cache] == sizes


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        LocalAttention(24, 4, window=0)
