"""The contract of decoding: token by token as in the whole text, in every strictly causal form."""

import pytest
import torch
from contract_layers import STRICT, WIDTH, build, name

from clusterformer.attention import mechanisms

every_strict = pytest.mark.parametrize("cls", STRICT, ids=name)


@every_strict
def test_step_by_step_equals_the_full_forward(cls) -> None:
    layer = build(cls, True)
    x = torch.randn(3, 37, WIDTH)
    with torch.no_grad():
        cache, steps = layer.cache(x), []
        for token in x.split(1, dim=1):
            values, cache = layer.step(token, cache)
            steps.append(values)
        torch.testing.assert_close(torch.cat(steps, 1), layer(x).values)


@every_strict
def test_several_tokens_after_others_are_read_as_in_the_whole_text(cls) -> None:
    layer = build(cls, True)
    x = torch.randn(2, 37, WIDTH)
    with torch.no_grad():
        first, cache = layer.prefill(x[:, :17], layer.cache(x))
        none, cache = layer.prefill(x[:, 17:17], cache)
        rest, cache = layer.prefill(x[:, 17:], cache)
        torch.testing.assert_close(torch.cat([first, none, rest], 1), layer(x).values)
    assert cache[0].tolist() == [37, 37]


@every_strict
def test_after_any_number_of_first_tokens_the_next_are_as_in_the_whole_text(cls) -> None:
    layer = build(cls, True)
    x = torch.randn(2, 37, WIDTH)
    with torch.no_grad():
        whole = layer(x).values
        for read in (1, 2, 7, 8, 9, 16, 24, 33):  # of which some end a block, a chunk, a ring
            values, cache = layer.prefill(x[:, :read], layer.cache(x))
            parts = [values]
            for token in x[:, read : read + 4].split(1, dim=1):
                values, cache = layer.step(token, cache)
                parts.append(values)
            torch.testing.assert_close(torch.cat(parts, 1), whole[:, : read + 4])


@every_strict
def test_from_a_copy_of_a_cache_a_text_goes_on_in_two_ways(cls) -> None:
    layer = build(cls, True)
    x, other = torch.randn(2, 21, WIDTH), torch.randn(2, 1, WIDTH)
    with torch.no_grad():
        cache = layer.prefill(x[:, :17], layer.cache(x))[1]
        cache = layer.step(x[:, 17:18], cache)[1]
        copied = tuple(part.clone() for part in cache)
        for token in (other, *x[:, 18:].split(1, dim=1)):
            cache = layer.step(token, cache)[1]
        rest, _ = layer.prefill(x[:, 18:], copied)
        torch.testing.assert_close(rest, layer(x).values[:, 18:])


@every_strict
def test_a_step_reads_one_token_of_each_row_of_its_cache(cls) -> None:
    layer = build(cls, True)
    x = torch.randn(2, 5, WIDTH)
    for wrong in (x, x[:, :0], x[:, 0], x[:1, :1], x[:, :1, 1:]):
        with pytest.raises(ValueError, match="x must"):
            layer.step(wrong, layer.cache(x))
    with torch.no_grad():
        values, _ = layer.step(x[:0, :1], layer.cache(x[:0]))
    assert values.shape == (0, 1, WIDTH)


@pytest.mark.parametrize("cls", mechanisms(), ids=name)
def test_a_form_that_is_not_causal_does_not_decode(cls) -> None:
    with pytest.raises(ValueError, match="stepwise"):
        build(cls, False).cache(torch.randn(1, 1, WIDTH))
