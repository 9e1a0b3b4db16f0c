"""Block top-k attention against a literal version of its published selection (MoBA)."""

import pytest
import torch
from torch import Tensor

from clusterformer.attention import BlockTopKAttention, FullAttention
from clusterformer.kernels import selected_blocks


def literal(q: Tensor, k: Tensor, v: Tensor, size: int, top_k: int, causal: bool) -> Tensor:
    """MoBA of one head (N, D), token by token: eq. 5-6 of arXiv 2502.13189, if causal."""
    length, width = q.shape
    mixed = []
    for t in range(length):
        own, last = t // size, t if causal else length - 1
        others = set(range(last // size + 1)) - {own}
        gate = {i: float(q[t] @ k[i * size : (i + 1) * size].mean(0)) for i in others}
        best = sorted(gate, key=gate.__getitem__, reverse=True)[: top_k - 1]
        keys = [j for i in [*best, own] for j in range(i * size, (i + 1) * size) if j <= last]
        weights = (k[keys] @ q[t] / width**0.5).softmax(0)
        mixed.append(weights @ v[keys])
    return torch.stack(mixed)


@pytest.mark.parametrize(
    ("length", "size", "top_k"), [(23, 4, 3), (24, 4, 1), (7, 3, 2), (5, 8, 2)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_published_selection(causal: bool, length: int, size: int, top_k: int) -> None:
    q, k, v = torch.randn(3, 2, 2, length, 8, dtype=torch.float64)
    core = BlockTopKAttention(16, 2, causal=causal, block_size=size, top_k=top_k)
    found, _ = core(q, k, v, hidden=torch.zeros(2, length, 16))
    for row in range(2):
        for head in range(2):
            heads = (x[row, head] for x in (q, k, v))
            expected = literal(*heads, size, top_k, causal)
            torch.testing.assert_close(found[row, head].float(), expected.float())


@pytest.mark.parametrize("causal", [False, True])
def test_enough_blocks_are_full_attention(causal: bool) -> None:
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 2, 4, 29, 8).unbind())
    hidden, found = torch.zeros(2, 29, 32), []
    mask = torch.rand(2, 29) < 0.8
    for core in (
        BlockTopKAttention(32, 4, causal=causal, block_size=5, top_k=6),
        FullAttention(32, 4, causal=causal),
    ):
        mixed, _ = core(q, k, v, hidden=hidden, key_mask=mask)
        mixed = mixed.transpose(1, 2)[mask]
        found.append((mixed, *torch.autograd.grad(mixed.square().sum(), (q, k, v))))
    for ours, full in zip(*found, strict=True):
        torch.testing.assert_close(ours, full)


@pytest.mark.parametrize("causal", [False, True])
def test_a_block_is_met_by_any_number_of_queries(
    causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 2, 2, 29, 8).unbind())
    mask, weight, found = torch.rand(2, 29) < 0.8, torch.randn(2, 2, 29, 8), []
    core = BlockTopKAttention(16, 2, causal=causal, block_size=4, top_k=3)
    for group in (selected_blocks.GROUP, 5):
        monkeypatch.setattr(selected_blocks, "GROUP", group)
        mixed, _ = core(q, k, v, hidden=torch.zeros(2, 29, 16), key_mask=mask)
        mixed = (mixed * weight).transpose(1, 2)[mask]
        found.append((mixed, *torch.autograd.grad(mixed.sum(), (q, k, v))))
    for whole, groups in zip(*found, strict=True):
        torch.testing.assert_close(groups, whole)


def test_without_causality_a_later_block_may_be_chosen() -> None:
    q, k, v = torch.zeros(3, 1, 1, 9, 4).unbind()
    q[0, 0, 0, 0] = k[0, 0, 6, 0] = v[0, 0, 6, 1] = 10.0
    core = BlockTopKAttention(4, 1, block_size=3, top_k=2)
    found, _ = core(q, k, v, hidden=torch.zeros(1, 9, 4))
    assert found[0, 0, 0, 1] > 9


def test_a_block_of_padding_takes_the_place_of_no_other() -> None:
    """Also where the text ends with a block, and all other blocks score below 0."""
    q, v = torch.rand(2, 1, 2, 16, 8).unbind()
    hidden, mask = torch.zeros(1, 16, 16), torch.arange(16)[None] < 12
    core = BlockTopKAttention(16, 2, block_size=4, top_k=2)
    padded, _ = core(q, -q, v, hidden=hidden, key_mask=mask)
    alone, _ = core(*(x[:, :, :12] for x in (q, -q, v)), hidden=hidden[:, :12])
    torch.testing.assert_close(padded[:, :, :12], alone)


@pytest.mark.parametrize("option", ["block_size", "top_k"])
def test_options_are_at_least_one(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be at least 1, got 0"):
        BlockTopKAttention(8, 2, **{option: 0})
