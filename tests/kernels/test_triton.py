"""The Triton kernels against the specification, interpreted on CPU: values and every gradient."""

import itertools

import pytest
import torch
from torch import Tensor

from clusterformer.kernels import reference
from clusterformer.kernels.blocks import Blocks, window_mask
from clusterformer.kernels.chunk_attention import chunk_attention
from clusterformer.kernels.chunking import cluster_chunks, equal_blocks, window_blocks
from clusterformer.kernels.dispatch import VARIABLE

pytest.importorskip("triton")

BATCH, HEADS, LENGTH = 2, 2, 19


def mask_of(length: int, padded: bool) -> Tensor | None:
    lengths = torch.tensor([[length], [max(1, length * 2 // 3)]])
    return torch.arange(length) < lengths if padded else None


def blocks_of(form: str, length: int, mask: Tensor | None, clusters: int = 4) -> Blocks:
    assignment = torch.randint(clusters, (BATCH, length))
    assignment[assignment == 1] = 0  # one cluster stays empty
    grouped = reference.sort(assignment, clusters, mask)
    if form == "window":
        return window_blocks(length, BATCH, 6, mask, device=assignment.device)
    if form == "strict":
        return cluster_chunks(grouped, 4, mask)
    return equal_blocks(grouped, clusters, mask, 1, 1 if form == "both ways" else 0)


def inputs(length: int, width: int, wide: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    rows = [torch.randn(BATCH, length, HEADS, width, dtype=dtype).transpose(1, 2) for _ in "qkv"]
    return [*rows, *(torch.randn(BATCH, length, wide, dtype=dtype) for _ in "qk")]


def run(kernel: str, tensors: list[Tensor], blocks: Blocks, monkeypatch, **options) -> list[Tensor]:
    """Values, and gradients of whatever has columns."""
    monkeypatch.setenv(VARIABLE, kernel)
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    q, k, v, *extra = leaves
    out = chunk_attention(q, k, v, blocks, scale=0.3, extra=(extra[0], extra[1]), **options)
    gradient = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.dtype)
    given = [x for x in leaves if x.numel()]
    return [out.detach(), *torch.autograd.grad(out, given, gradient)]


def agree(tensors: list[Tensor], blocks: Blocks, monkeypatch, **options) -> None:
    expected, found = (
        run(kernel, tensors, blocks, monkeypatch, **options) for kernel in ("reference", "triton")
    )
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


FORMS = {
    "both ways": {},
    "look back": {},
    "masked causal": {"causal": True},
    "strict": {"causal": True},
    "window": {"causal": True, "within": 6},
}


@pytest.mark.parametrize(
    ("form", "padded"),
    [
        pytest.param(form, padded, marks=[] if quick else pytest.mark.slow)
        for form in FORMS
        for padded in (False, True)
        for quick in [padded and form == "look back"]
    ],
)
def test_values_and_gradients_are_those_of_the_reference(form, padded, monkeypatch) -> None:
    blocks = blocks_of(form, LENGTH, mask_of(LENGTH, padded))
    agree(inputs(LENGTH, 8, 5), blocks, monkeypatch, **FORMS[form])


def test_padding_may_stand_before_a_text_of_one_block(monkeypatch) -> None:
    mask = torch.arange(9) >= torch.tensor([[0], [4]])
    blocks = window_blocks(9, BATCH, 16, mask, device=mask.device)
    agree(inputs(9, 8, 0), blocks, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(
    "length", [1, *(pytest.param(length, marks=pytest.mark.slow) for length in (3, 63))]
)
def test_any_length_and_width(length, monkeypatch) -> None:
    for width, wide, clusters in [(20, 0, 2), (33, 3, 7)]:
        blocks = blocks_of("both ways", length, None, clusters)
        agree(inputs(length, width, wide), blocks, monkeypatch)


@pytest.mark.slow
def test_heads_with_blocks_of_their_own_in_several_rounds(monkeypatch) -> None:
    """Reformer's: one softmax over the rounds, and a bias on a token's logit with itself."""
    length, rounds = 21, 2
    assignment = torch.randint(3, (rounds * BATCH * HEADS, length))
    blocks = equal_blocks(reference.sort(assignment, 3), 3, None, 1, 0)
    mask = window_mask(blocks).expand(-1, -1, blocks.members.shape[2], -1).clone()
    mask[BATCH * HEADS :, :, :, ::3] = False
    agree(inputs(length, 8, 0), blocks, monkeypatch, mask=mask, self_bias=-5e4)


@pytest.mark.slow
def test_half_precision_is_as_near_as_the_reference(monkeypatch) -> None:
    blocks = blocks_of("both ways", LENGTH, mask_of(LENGTH, True))
    exact = inputs(LENGTH, 16, 5, torch.float16)
    wide = [x.float() for x in exact]
    truth, plain, fused = (
        run(kernel, tensors, blocks, monkeypatch)
        for kernel, tensors in (("reference", wide), ("reference", exact), ("triton", exact))
    )
    for a, b, c in zip(truth, plain, fused, strict=True):
        assert (c.float() - a).abs().max() <= 2 * (b.float() - a).abs().max() + 2e-3


def test_float64_is_computed_in_float32(monkeypatch) -> None:
    """No kernel compiles for float64: its sums are float32."""
    blocks = blocks_of("strict", 9, None)
    rows = inputs(9, 8, 0)
    single, double = (
        run("triton", x, blocks, monkeypatch) for x in (rows, [x.double() for x in rows])
    )
    for a, b in zip(single, double, strict=True):
        assert b.dtype is torch.float64
        assert torch.equal(a.double(), b)


@pytest.mark.slow
def test_the_same_bits_twice(monkeypatch) -> None:
    tensors, blocks = inputs(LENGTH, 8, 5), blocks_of("both ways", LENGTH, None)
    first, second = (run("triton", tensors, blocks, monkeypatch) for _ in range(2))
    assert all(itertools.starmap(torch.equal, zip(first, second, strict=True)))


@pytest.mark.slow
def test_padding_reaches_nothing(monkeypatch) -> None:
    mask = mask_of(LENGTH, True)
    assert mask is not None
    tensors, blocks = inputs(LENGTH, 8, 5), blocks_of("look back", LENGTH, mask)
    poisoned = [x.clone() for x in tensors]
    for x in poisoned:
        x[1, ..., 12:, :] = float("nan")
    clean, dirty = (run("triton", x, blocks, monkeypatch) for x in (tensors, poisoned))
    for a, b in zip(clean, dirty, strict=True):
        assert torch.equal(a, b)
        assert (b[1, ..., 12:, :] == 0).all()


@pytest.mark.slow
def test_long_offsets_give_the_same(monkeypatch) -> None:
    from clusterformer.kernels import _chunk_attention_triton as kernels

    tensors, blocks = inputs(9, 8, 5), blocks_of("look back", 9, None, 2)
    short = run("triton", tensors, blocks, monkeypatch)
    monkeypatch.setattr(kernels, "MAX_OFFSET", 1)
    assert all(
        itertools.starmap(
            torch.equal, zip(short, run("triton", tensors, blocks, monkeypatch), strict=True)
        )
    )


def test_what_it_cannot_hold_is_said(monkeypatch) -> None:
    blocks = blocks_of("look back", 9, None)
    with pytest.raises(ValueError, match="up to 256 columns, got 300 with 5 extra"):
        run("triton", inputs(9, 300, 5), blocks, monkeypatch)
    with pytest.raises(ValueError, match="CLUSTERFORMER_KERNELS must be one of triton, reference"):
        run("cuda", inputs(9, 8, 5), blocks, monkeypatch)
