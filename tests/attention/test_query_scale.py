"""A factor on queries, which keeps attention sharp in texts longer than those of training."""

import pytest
import torch

from clusterformer.attention import FullAttention, MultiHeadAttention


def layers(scale: float, causal: bool = False) -> tuple[MultiHeadAttention, MultiHeadAttention]:
    """A layer with the factor, and one whose weights hold it."""
    torch.manual_seed(0)
    scaled = MultiHeadAttention(FullAttention(8, 2, causal=causal), 100.0, query_scale=scale)
    plain = MultiHeadAttention(FullAttention(8, 2, causal=causal), 100.0)
    plain.load_state_dict(scaled.state_dict())
    with torch.no_grad():
        plain.q_proj.weight *= scale
        plain.q_proj.bias.normal_()
        scaled.q_proj.bias.copy_(plain.q_proj.bias / scale)
    return scaled.eval(), plain.eval()


def test_it_is_a_factor_on_the_logits() -> None:
    scaled, plain = layers(1.5)
    x = torch.randn(2, 7, 8)
    torch.testing.assert_close(scaled(x).values, plain(x).values)


def test_decoding_scales_too() -> None:
    scaled, plain = layers(1.5, causal=True)
    x = torch.randn(2, 7, 8)
    values, cache = scaled.prefill(x[:, :4], scaled.cache(x))
    parts = [values]
    for at in range(4, 7):
        values, cache = scaled.step(x[:, at : at + 1], cache)
        parts.append(values)
    torch.testing.assert_close(torch.cat(parts, 1), plain(x).values)


def test_attention_to_another_text_is_as_it_was() -> None:
    torch.manual_seed(0)
    plain = MultiHeadAttention(FullAttention(8, 2))
    scaled = MultiHeadAttention(FullAttention(8, 2), query_scale=3.0)
    scaled.load_state_dict(plain.state_dict())
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    assert torch.equal(scaled(x, memory=memory).values, plain(x, memory=memory).values)
    steps = scaled.cross_attend(x[:, :1], scaled.project_memory(memory))
    torch.testing.assert_close(steps, plain(x, memory=memory).values[:, :1])


@pytest.mark.parametrize("length", [16, 256, 4096])
def test_by_the_logarithm_of_the_length_a_key_keeps_its_weight(length: int) -> None:
    """One key by log 16 ahead of 15 others has half of the weight, and among more as well."""
    core = FullAttention(1, 1)
    logits = torch.zeros(1, 1, length, 1)
    logits[..., 0, 0] = torch.log(torch.tensor(16.0))
    scale = torch.log(torch.tensor(float(length))) / torch.log(torch.tensor(16.0))
    values = torch.zeros(1, 1, length, 1)
    values[..., 0, 0] = 1
    mixed, _ = core(scale.view(1, 1, 1, 1), logits, values, hidden=logits[:, 0])
    assert mixed.item() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_a_factor_that_is_none_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="query_scale must be above 0 and finite"):
        MultiHeadAttention(FullAttention(8, 2), query_scale=scale)
