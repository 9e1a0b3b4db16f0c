"""The fused version of gathered attention against its definition."""

import pytest
import torch
from torch import Tensor

from clusterformer.kernels import gathered_attention as kernel


def case(slots: int = 1) -> tuple[Tensor, ...]:
    """Three groups of up to 4 queries in each of two sequences, each with 5 keys of its own.

    The mask is for all slots of a group, or with four for each.
    """
    q, k, v = torch.randn(2, 9, 8), torch.randn(2, 11, 8), torch.randn(2, 11, 8)
    members = torch.stack([torch.randperm(9) for _ in range(2)])
    members = torch.nn.functional.pad(members, (0, 3)).view(2, 3, 4)
    filled = (torch.arange(12) < 9).view(1, 3, 4).repeat(2, 1, 1)
    filled[1, 0, 2] = False  # this query stands nowhere
    seen = torch.rand(2, 3, 11).topk(5).indices
    mask = torch.rand(2, 3, slots, 5) < 0.7
    mask[..., 0] = True
    return q, k, v, members, filled, seen, mask


@pytest.mark.parametrize("slots", [1, 4])
def test_equals_the_definition_with_all_gradients(monkeypatch, slots: int) -> None:
    monkeypatch.setattr(kernel, "PIECE", 2 * 5 * 8)  # two groups a piece
    *rows, members, filled, seen, mask = case(slots)
    grad = torch.randn(2, 9, 8)
    results = []
    for function in (kernel.reference, kernel.gathered_attention):
        leaves = [x.clone().requires_grad_() for x in rows]
        out = function(*leaves, members, filled, seen, mask, scale=0.3)
        out.backward(grad)
        results.append([out, *(x.grad for x in leaves)])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("slots", [1, 4])
def test_further_keys_are_in_the_same_softmax(monkeypatch, slots: int) -> None:
    """Keys of the second half, given as values and masses, against all keys in one call."""
    monkeypatch.setattr(kernel, "PIECE", 2 * 5 * 8)
    q, k, v, members, filled, seen, mask = case(slots)
    grad, half = torch.randn(2, 9, 8), 5
    others = torch.arange(half, 11).expand(2, 3, -1)
    seen = torch.arange(half).expand(2, 3, -1)
    mask = torch.ones(2, 3, slots, half, dtype=torch.bool).index_fill_(3, torch.tensor([2]), False)
    both = torch.cat([seen, others], -1)
    everywhere = torch.cat([mask, torch.ones(2, 3, slots, 11 - half, dtype=torch.bool)], -1)

    def whole(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return kernel.reference(q, k, v, members, filled, both, everywhere, scale=0.3)

    def parts(function):  # type: ignore[no-untyped-def]
        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            logits = 0.3 * q @ k[:, half:].mT
            more = logits.softmax(-1) @ v[:, half:], logits.logsumexp(-1, keepdim=True)
            return function(q, k, v, members, filled, seen, mask, more, scale=0.3)

        return attention

    results = []
    for function in (whole, parts(kernel.reference), parts(kernel.gathered_attention)):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = function(*leaves)
        out.backward(grad)
        results.append([out, *(x.grad for x in leaves)])
    for found in results[1:]:
        for one, expected in zip(found, results[0], strict=True):
            torch.testing.assert_close(one, expected)


def test_no_further_keys_change_nothing() -> None:
    q, k, v, *index = case()
    none = torch.randn_like(q), torch.full((2, 9, 1), -1e30)
    for function in (kernel.reference, kernel.gathered_attention):
        alone = function(q, k, v, *index, scale=0.3)
        torch.testing.assert_close(function(q, k, v, *index, none, scale=0.3), alone)


@pytest.mark.parametrize("slots", [1, 4])
def test_equals_softmax_over_the_keys_seen(slots: int) -> None:
    q, k, v, members, filled, seen, mask = case(slots)
    out = kernel.gathered_attention(q, k, v, members, filled, seen, mask, scale=0.3)
    expected = torch.zeros_like(q)
    for b, g, s in filled.nonzero().tolist():
        keys = seen[b, g][mask[b, g, s % slots]]
        query = members[b, g, s]
        expected[b, query] = (0.3 * k[b, keys] @ q[b, query]).softmax(0) @ v[b, keys]
    torch.testing.assert_close(out, expected)


def test_non_contiguous_input() -> None:
    q, k, v, *index = case()
    turned = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    torch.testing.assert_close(
        kernel.gathered_attention(*turned, *index, scale=1.0),
        kernel.gathered_attention(q, k, v, *index, scale=1.0),
    )


def test_values_have_the_same_gradient_where_queries_and_keys_need_none() -> None:
    q, k, v, *index = case(4)
    grads = []
    for learnt in (True, False):
        leaves = q.clone().requires_grad_(learnt), k, v.clone().requires_grad_()
        kernel.gathered_attention(*leaves, *index, scale=0.3).pow(2).sum().backward()
        grads.append(leaves[2].grad)
    assert torch.equal(*grads)


def test_without_any_query_nothing_is_computed() -> None:
    *rows, members, filled, seen, mask = case()
    leaves = [x.requires_grad_() for x in rows]
    out = kernel.gathered_attention(*leaves, members, filled & False, seen, mask, scale=1.0)
    out.sum().backward()
    assert not out.any()
    assert not leaves[2].grad.any()
