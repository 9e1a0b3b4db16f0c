"""A short convolution before attention: its equation, padding, decoding, what it is for."""

import pytest
import torch
from torch import Tensor, nn

from clusterformer.attention import FullAttention, MultiHeadAttention
from clusterformer.attention.short_convolution import ShortConvolution
from clusterformer.data.streams import unpadded_batch
from clusterformer.models.config import TransformerConfig
from clusterformer.models.language_model import LanguageModel


@pytest.mark.parametrize("length", [1, 2, 4])
def test_it_is_the_depthwise_convolution_of_torch_beside_the_input(length: int) -> None:
    torch.manual_seed(0)
    own = ShortConvolution(6, length)
    other = nn.Conv1d(6, 6, length, groups=6, padding=length - 1, bias=False)
    other.weight.data = own.weight.detach().flip(0).T[:, None]  # torch's last weight is the token's
    x = torch.randn(3, 9, 6)
    expected = x + other(x.transpose(1, 2))[:, :, :9].transpose(1, 2)
    torch.testing.assert_close(own(x), expected)
    torch.testing.assert_close(own(x, torch.ones(3, 9, dtype=torch.bool)), expected)


def test_a_text_is_mixed_alike_whatever_padding_stands_inside_it() -> None:
    torch.manual_seed(0)
    layer, text = ShortConvolution(4, 3), torch.randn(5, 4)
    mask = torch.tensor([False, True, True, False, True, False, False, True, True, False])
    x = torch.full((1, 10, 4), torch.nan)
    x[0, mask] = text
    mixed = layer(x, mask[None])
    torch.testing.assert_close(mixed[0, mask], layer(text[None])[0])
    assert not mixed[0, ~mask].any()


def test_no_weight_gets_a_nan_from_padding() -> None:
    layer = MultiHeadAttention(FullAttention(8, 2), short_convolution=3)
    x, mask = torch.randn(2, 6, 8), torch.arange(6) < torch.tensor([[6], [3]])
    layer(x.masked_fill(~mask[..., None], torch.nan), mask).values.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("first", [1, 2, 7])
def test_decoding_gives_the_values_of_the_whole_text(first: int) -> None:
    torch.manual_seed(0)
    core = FullAttention(16, 2, causal=True)
    layer = MultiHeadAttention(core, rotary_base=100.0, short_convolution=4).eval()
    x = torch.randn(2, 12, 16)
    values, cache = layer.prefill(x[:, :first], layer.cache(x))
    parts = [values]
    for at in range(first, 10):
        values, cache = layer.step(x[:, at : at + 1], cache)
        parts.append(values)
    parts.append(layer.prefill(x[:, 10:], cache)[0])
    torch.testing.assert_close(torch.cat(parts, 1), layer(x).values)


def test_with_it_one_layer_finds_what_followed_the_like_of_a_token() -> None:
    """`a b ... a`: the second a attends to b, which no layer without a view of neighbours can."""
    torch.manual_seed(0)
    symbols, length = 16, 24
    embedding, head = nn.Embedding(symbols, 32), nn.Linear(32, symbols)
    accuracy = {}
    for tokens in (0, 2):
        core = FullAttention(32, 1, causal=True)
        layer = MultiHeadAttention(core, short_convolution=tokens)
        parameters = [*embedding.parameters(), *layer.parameters(), *head.parameters()]
        optimizer = torch.optim.AdamW(parameters, lr=0.01)
        for _ in range(300):
            x, answer = _recall(32, symbols, length)
            logits = head(layer(embedding(x)).values[:, -1])
            loss = nn.functional.cross_entropy(logits, answer)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        x, answer = _recall(256, symbols, length)
        logits = head(layer(embedding(x)).values[:, -1])
        accuracy[tokens] = (logits.argmax(-1) == answer).float().mean().item()
    assert accuracy[2] > 0.9
    assert accuracy[0] < 0.5


def test_a_language_model_has_it_in_every_layer_and_generates_with_it() -> None:
    torch.manual_seed(0)
    config = TransformerConfig(FullAttention, d_model=16, num_heads=2, short_convolution=3)
    model = LanguageModel(config, vocab_size=11).eval()
    assert sum(isinstance(part, ShortConvolution) for part in model.modules()) == 2
    tokens = torch.randint(11, (2, 9))
    logits, _ = model.prefill(tokens)
    torch.testing.assert_close(logits, model(unpadded_batch(tokens, tokens)).logits[:, -1])


def _recall(batch: int, symbols: int, length: int) -> tuple[Tensor, Tensor]:
    """Draw texts (B, N) of different symbols in pairs, and at last one of their first halves."""
    pairs = length // 4
    x = torch.rand(batch, symbols).argsort(1)[:, : 2 * pairs]
    asked = torch.randint(pairs, (batch, 1))
    return torch.cat([x, x.gather(1, 2 * asked)], 1), x.gather(1, 2 * asked + 1)[:, 0]
