"""The contract of attention, over every mechanism and causal form that exists."""

import inspect

import numpy as np
import pytest
import torch
from contract_layers import FORMS, HEADS, SMALL, STRICT, WIDTH, build, mask_of, name
from torch import Tensor

from clusterformer import attention
from clusterformer.attention import MultiHeadAttention, mechanisms

every_form = pytest.mark.parametrize(("cls", "causal"), FORMS, ids=name)
every_strict = pytest.mark.parametrize("cls", STRICT, ids=name)


def test_there_are_mechanisms() -> None:
    assert {"FullAttention", "NeuralClusteringAttention"} <= {cls.__name__ for cls in mechanisms()}


@every_form
@pytest.mark.parametrize("length", [1, 2, 3, 13, 37])
def test_any_length_gives_a_value_to_every_token(cls, causal, length: int) -> None:
    layer = build(cls, causal)
    out = layer(torch.randn(2, length, WIDTH))
    assert out.values.shape == (2, length, WIDTH)
    assert out.values.isfinite().all()
    if out.grouping is not None:
        assert out.grouping.assignment.shape[-1] == length
        assert not out.grouping.assignment.is_floating_point()
        assert (out.grouping.assignment < out.grouping.num_clusters).all()


@every_form
@pytest.mark.parametrize("shape", [(2, 0), (0, 8), (0, 0)], ids=str)
def test_no_text_and_no_token_give_no_values(cls, causal, shape: tuple[int, int]) -> None:
    layer, x = build(cls, causal), torch.zeros(*shape, WIDTH)
    assert layer(x, torch.ones(shape, dtype=torch.bool)).values.shape == x.shape


@every_form
def test_no_token_is_an_orphan(cls, causal) -> None:
    """If every value vector is the same, so is every mixture; an orphan would stand out."""
    layer = build(cls, causal)
    torch.nn.init.zeros_(layer.v_proj.weight)
    torch.nn.init.normal_(layer.v_proj.bias)
    torch.nn.init.eye_(layer.out_proj.weight)
    mask = mask_of([29, 17, 1], 29)
    values = layer(torch.randn(3, 29, WIDTH), mask).values[mask]
    torch.testing.assert_close(values, layer.v_proj.bias.expand_as(values))


@every_form
def test_every_mechanism_says_what_share_a_token_sees(cls, causal) -> None:
    """That the share is right is tested in test_visibility.py."""
    layer, mask = build(cls, causal), mask_of([29, 17, 1], 29)
    seen = layer.core.keys_seen(layer(torch.randn(3, 29, WIDTH), mask).grouping, mask)
    assert seen is not None
    assert seen.shape == mask.shape
    assert ((seen > 0) == mask).all()
    assert (seen <= 1).all()


@every_form
@pytest.mark.parametrize("filler", [0.0, 1e4, float("nan")])
def test_padding_changes_nothing(cls, causal, filler: float) -> None:
    layer = build(cls, causal)
    lengths = [23, 11, 4, 1]
    texts = [torch.randn(length, WIDTH) for length in lengths]
    for padded in (23, 31):
        x = torch.full((4, padded, WIDTH), filler)
        for row, text in zip(x, texts, strict=True):
            row[: len(text)] = text
        values = layer(x, mask_of(lengths, padded)).values
        for row, text in zip(values, texts, strict=True):
            torch.testing.assert_close(row[: len(text)], layer(text[None]).values[0])


@every_form
def test_padding_may_stand_anywhere(cls, causal) -> None:
    layer = build(cls, causal)
    mask = torch.rand(2, 31) < 0.6
    x = torch.randn(2, 31, WIDTH)
    values = layer(x, mask).values
    for row in range(2):
        alone = layer(x[row][mask[row]][None]).values[0]
        torch.testing.assert_close(values[row][mask[row]], alone)


@every_form
def test_a_row_of_padding_only_is_harmless(cls, causal) -> None:
    layer = build(cls, causal)
    x = torch.randn(2, 9, WIDTH, requires_grad=True)
    mask = mask_of([9, 0], 9)
    values = layer(x, mask).values
    torch.testing.assert_close(values[0], layer(x[:1]).values[0])
    values[mask].sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@every_form
def test_a_row_of_padding_only_has_no_loss(cls, causal) -> None:
    """Hidden states of padding need not be 0: models of transformers give what they have."""
    core = build(cls, causal).core.train()
    q, k, v = torch.randn(3, 2, HEADS, 20, WIDTH // HEADS).unbind()
    mask, hidden = mask_of([20, 0], 20), torch.randn(2, 20, WIDTH)
    _, grouping = core(q, k, v, hidden=hidden, query_mask=mask, key_mask=mask)
    if grouping is not None and grouping.loss is not None:
        assert grouping.loss[0] != 0
        assert grouping.loss[1] == 0


@every_form
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_broken_sequence_does_not_reach_its_neighbours(cls, causal, bad: float) -> None:
    layer = build(cls, causal)
    x = torch.randn(3, 19, WIDTH)
    expected = layer(x).values
    x[1, 7] = bad
    values = layer(x).values
    torch.testing.assert_close(values[[0, 2]], expected[[0, 2]])


@every_strict
@pytest.mark.parametrize("padded", [False, True])
def test_future_does_not_leak(cls, padded: bool) -> None:
    layer = build(cls, True)
    length = 41
    x = torch.randn(4, length, WIDTH)
    mask = mask_of([length, 39, 30, 25], length) if padded else None
    values = layer(x, mask).values
    for cut in (1, 12, 24):
        changed = x.clone()
        changed[:, cut:] = 3 * torch.randn(4, length - cut, WIDTH)
        torch.testing.assert_close(layer(changed, mask).values[:, :cut], values[:, :cut])
        torch.testing.assert_close(layer(x[:, :cut]).values, values[:, :cut])


@pytest.mark.parametrize("cls", mechanisms(), ids=name)
def test_a_causal_form_that_is_missing_is_refused(cls) -> None:
    for causal in {True, "masked", "maybe"} - set(cls.causal_forms):
        with pytest.raises(ValueError, match="has no causal"):
            cls(WIDTH, HEADS, causal=causal)


@every_strict
@pytest.mark.parametrize("causal", [1, np.True_], ids=repr)
def test_what_only_equals_true_is_no_causal_form(cls, causal) -> None:
    """It chose the form of the papers, which leaks, where there is one."""
    with pytest.raises(ValueError, match="has no causal="):
        cls(WIDTH, HEADS, causal=causal)


@every_form
def test_evaluation_twice_gives_the_same_bits(cls, causal) -> None:
    layer = build(cls, causal)
    x = torch.randn(2, 37, WIDTH)
    assert torch.equal(layer(x).values, layer(x).values)


@every_form
def test_same_state_gives_the_same_bits(cls, causal) -> None:
    """All randomness lies in parameters and buffers that a checkpoint carries."""
    first, second = build(cls, causal), build(cls, causal)
    second.load_state_dict(first.state_dict())
    x = torch.randn(2, 37, WIDTH)
    assert torch.equal(first(x).values, second(x).values)


@pytest.mark.parametrize(
    "cls", [cls for cls in mechanisms() if "seed" in inspect.signature(cls).parameters], ids=name
)
def test_a_seed_draws_the_random_buffers_and_nothing_else_does(cls) -> None:
    def drawn(seed: int) -> list[Tensor]:
        buffers = dict(cls(WIDTH, HEADS, seed=seed).named_buffers())
        return [buffer.flatten() for buffer in buffers.values() if buffer.is_floating_point()]

    first, again, other = (torch.cat(drawn(seed)) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@every_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_gradients_are_finite(cls, causal, dtype: torch.dtype) -> None:
    layer = build(cls, causal).train()
    x = torch.randn(2, 23, WIDTH, requires_grad=True)
    mask = mask_of([23, 9], 23)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        out = layer(x, mask)
    loss = out.values[mask].float().square().sum()
    if out.grouping is not None and out.grouping.centroids is not None:
        assert out.grouping.centroids.dtype == torch.float32
        loss = loss + out.grouping.centroids.sum()
    if out.grouping is not None and out.grouping.loss is not None:
        loss = loss + out.grouping.loss.sum()
    loss.backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    for parameter_name, parameter in layer.named_parameters():
        if parameter_name.startswith(("q_proj", "k_proj")) and parameter.grad is None:
            continue  # a mechanism need not compare queries with keys
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name


@every_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_inputs_up_to_1e4_give_finite_values_and_gradients(cls, causal, dtype) -> None:
    layer = build(cls, causal).train()
    x = (1e4 * torch.randn(2, 23, WIDTH).clamp(-1, 1)).requires_grad_()
    mask = mask_of([23, 9], 23)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        values = layer(x, mask).values[mask]
    values.float().mean().backward()
    assert values.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    for parameter in layer.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()


@every_form
def test_a_window_longer_than_the_text_costs_nothing(cls, causal) -> None:
    """With windows of the text's length the values are the same, and take as many slots.

    A block of the text's length is whole at the last token, and NSA then reads it in short too.
    """
    wide, narrow = (
        {"chunk_size": n, "window": n, "top_k": n, "block_size": block, "local_window": n,
         "min_width": n}
        for n, block in ((10**7, 10**7), (19, 20))
    )  # fmt: skip
    known = inspect.signature(cls).parameters
    x, mask = torch.randn(2, 19, WIDTH, requires_grad=True), mask_of([19, 7], 19)
    found = []
    for options in (wide, narrow):
        torch.manual_seed(0)
        chosen = {k: v for k, v in options.items() if k in known}
        layer = MultiHeadAttention(cls(WIDTH, HEADS, causal=causal, **chosen))
        values = layer(x, mask).values[mask]
        values.sum().backward()
        found.append(values)
    torch.testing.assert_close(*found)


@every_form
def test_input_need_not_be_contiguous(cls, causal) -> None:
    layer = build(cls, causal)
    x = torch.randn(WIDTH, 2, 19).permute(1, 2, 0)
    torch.testing.assert_close(layer(x).values, layer(x.contiguous()).values)


@every_strict
def test_rotated_heads_of_width_two_do_not_leak(cls) -> None:
    """The numbers of such a head are no neighbours in memory."""
    options = {k: v for k, v in SMALL.items() if k in inspect.signature(cls).parameters}
    layer = MultiHeadAttention(cls(8, 4, causal=True, **options), rotary_base=100.0).eval()
    x = torch.randn(1, 70, 8)
    values = layer(x).values
    for cut in (9, 66):
        torch.testing.assert_close(layer(x[:, :cut]).values, values[:, :cut])


@every_form
def test_rows_do_not_depend_on_each_other(cls, causal) -> None:
    layer = build(cls, causal)
    x = torch.randn(3, 23, WIDTH)
    torch.testing.assert_close(layer(x).values[1:], layer(x[1:]).values)


@pytest.mark.parametrize("cls", mechanisms(), ids=name)
def test_cross_attention_or_a_clear_refusal(cls) -> None:
    layer = build(cls)
    x, memory = torch.randn(2, 7, WIDTH), torch.randn(2, 12, WIDTH)
    mask = mask_of([12, 5], 12)
    if not cls.cross:
        with pytest.raises(ValueError, match="no cross-attention"):
            layer(x, memory=memory, memory_mask=mask)
        return
    values = layer(x, memory=memory, memory_mask=mask).values
    torch.testing.assert_close(values[1:], layer(x[1:], memory=memory[1:, :5]).values)
    nothing = layer(x, memory=memory[:, :0]).values
    torch.testing.assert_close(nothing, layer.out_proj.bias.expand_as(x))
    with pytest.raises(ValueError, match="memory must have 2 rows like x, got 1"):
        layer(x, memory=memory[:1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": torch.randn(2, 5, 7)}, r"x must be \(batch, length, 32\), got \(2, 5, 7\)"),
        ({"key_mask": torch.ones(2, 5)}, "key_mask must be a bool tensor"),
        ({"key_mask": torch.ones(2, 6, dtype=torch.bool)}, r"must be \(2, 5\) like x"),
        ({"memory_mask": torch.ones(2, 5, dtype=torch.bool)}, "without memory"),
    ],
)
@pytest.mark.parametrize("cls", mechanisms(), ids=name)
def test_wrong_input_is_refused(cls, arguments: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(cls)(**{"x": torch.randn(2, 5, WIDTH)} | arguments)


def test_a_mask_of_numpy_is_named() -> None:
    with pytest.raises(ValueError, match="bool tensor, True at real tokens; got ndarray"):
        build(attention.FullAttention)(torch.randn(2, 5, WIDTH), np.ones((2, 5), dtype=bool))


@pytest.mark.parametrize("core", ["FullAttention", attention.FullAttention, torch.nn.Linear(8, 8)])
def test_a_layer_needs_a_mechanism(core) -> None:
    with pytest.raises(ValueError, match="core must be a mechanism, such as"):
        MultiHeadAttention(core)


@pytest.mark.parametrize("base", [0, -1.0, float("nan"), "10000", True])
def test_a_base_of_positions_that_rotates_nothing_is_refused(base) -> None:
    with pytest.raises(ValueError, match="rotary_base must be"):
        MultiHeadAttention(attention.FullAttention(WIDTH, HEADS), rotary_base=base)


@pytest.mark.parametrize(("cls", "causal"), FORMS, ids=name)
def test_what_has_no_cross_attention_projects_no_memory(cls, causal) -> None:
    layer, memory = build(cls, causal), torch.randn(2, 5, WIDTH)
    if not cls.cross or causal:
        with pytest.raises(ValueError, match="has no cross-attention"):
            layer.project_memory(memory)
        return
    wrong = torch.ones(1, 5, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"memory_mask must be \(2, 5\) like memory"):
        layer.project_memory(memory, wrong)
    with pytest.raises(ValueError, match="x must have 2 rows like memory, or as many for each"):
        layer.cross_attend(torch.randn(3, 1, WIDTH), layer.project_memory(memory))


@pytest.mark.parametrize("cls", [cls for cls in mechanisms() if cls.cross], ids=name)
def test_no_text_and_no_memory_are_projected_memory_too(cls) -> None:
    layer, x = build(cls), torch.randn(4, 1, WIDTH)
    torch.nn.init.normal_(layer.out_proj.bias)
    nothing = layer.project_memory(torch.randn(2, 0, WIDTH))
    torch.testing.assert_close(
        layer.cross_attend(x, nothing), layer(x, memory=x[:, :0]).values, rtol=0, atol=0
    )
    no_text = layer.project_memory(torch.randn(0, 5, WIDTH))
    assert layer.cross_attend(x[:0], no_text).shape == (0, 1, WIDTH)
    with pytest.raises(ValueError, match="x must have 0 rows like memory"):
        layer.cross_attend(x, no_text)


@pytest.mark.parametrize("cls", mechanisms(), ids=name)
def test_options_that_count_are_whole_numbers(cls) -> None:
    counts = {
        name: p.annotation
        for name, p in inspect.signature(cls).parameters.items()
        if p.annotation in (int, int | None) and name not in ("bits", "seed")
    }
    assert "num_heads" in counts
    for count in counts:
        with pytest.raises(ValueError, match=f"{count} must be a whole number, got 4.0"):
            cls(**{"d_model": WIDTH, "num_heads": HEADS, count: 4.0})


@pytest.mark.parametrize("cls", mechanisms(), ids=name)
def test_heads_must_divide_the_width(cls) -> None:
    with pytest.raises(ValueError, match="num_heads must divide d_model, got num_heads = 5"):
        cls(WIDTH, 5)


def test_an_unknown_mechanism_is_named_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"NoAttention.*FullAttention"):
        _ = attention.NoAttention
