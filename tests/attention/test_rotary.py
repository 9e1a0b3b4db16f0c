"""Rotary positions: distance counts, position does not."""

import pytest
import torch

from clusterformer.attention import FullAttention, MultiHeadAttention, mechanisms
from clusterformer.attention.rotary import rotate

STRICT = [cls for cls in mechanisms() if True in cls.causal_forms]


def test_products_depend_on_the_distance_alone() -> None:
    q, k = torch.randn(2, 1, 1, 9, 8, dtype=torch.double).unbind(0)
    positions = torch.arange(9)
    near = rotate(q, positions) @ rotate(k, positions).transpose(-1, -2)
    far = rotate(q, positions + 5000) @ rotate(k, positions + 5000).transpose(-1, -2)
    torch.testing.assert_close(near, far, atol=1e-3, rtol=1e-3)
    assert not torch.allclose(near, q @ k.transpose(-1, -2), atol=0.1)


def test_the_angles_are_those_of_the_paper() -> None:
    """Eq. 34 of RoFormer, as multiplication of complex numbers."""
    x = torch.randn(1, 1, 5, 6)
    positions = torch.tensor([0, 1, 2, 7, 300])
    turned = rotate(x, positions, base=100.0)
    for i in range(3):
        angle = positions * 100.0 ** (-2 * i / 6)
        expected = torch.complex(x[..., i], x[..., i + 3]) * torch.exp(1j * angle)
        torch.testing.assert_close(turned[..., i], expected.real)
        torch.testing.assert_close(turned[..., i + 3], expected.imag)


def test_a_layer_is_blind_to_a_shift_and_not_to_the_order() -> None:
    layer = MultiHeadAttention(FullAttention(32, 4), rotary_base=10_000.0)
    x = torch.randn(1, 12, 32)
    values = layer(x).values
    shifted = torch.cat([torch.randn(1, 5, 32), x], 1)
    mask = torch.arange(17)[None] >= 5
    torch.testing.assert_close(layer(shifted, mask).values[:, 5:], values, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(layer(x.flip(1)).values.flip(1), values, atol=1e-3)


@pytest.mark.parametrize("cls", STRICT, ids=lambda cls: cls.__name__)
def test_steps_know_their_place(cls) -> None:
    layer = MultiHeadAttention(cls(32, 4, causal=True), rotary_base=100_000.0).eval()
    x = torch.randn(3, 29, 32)
    with torch.no_grad():
        cache, steps = layer.cache(x), []
        for token in x.split(1, dim=1):
            values, cache = layer.step(token, cache)
            steps.append(values)
        torch.testing.assert_close(torch.cat(steps, 1), layer(x).values)
        assert cache[0].tolist() == [29, 29, 29]


def test_memory_has_no_places() -> None:
    plain = MultiHeadAttention(FullAttention(32, 4))
    turning = MultiHeadAttention(FullAttention(32, 4), rotary_base=10_000.0)
    turning.load_state_dict(plain.state_dict())
    x, memory = torch.randn(1, 4, 32), torch.randn(1, 9, 32)
    assert torch.equal(turning(x, memory=memory).values, plain(x, memory=memory).values)


def test_an_odd_head_width_is_refused() -> None:
    with pytest.raises(ValueError, match="even head width, got 5"):
        MultiHeadAttention(FullAttention(20, 4), rotary_base=10_000.0)
