"""Native sparse attention against a literal version of its three branches."""

import pytest
import torch
from torch import Tensor

from clusterformer.attention import MultiHeadAttention, NativeSparseAttention


def random_maps(core: NativeSparseAttention) -> NativeSparseAttention:
    """Give weights that begin at 0, or as the identity, values that they may learn."""
    for weight in (core.gates.weight, core.key_map, core.value_map):
        torch.nn.init.normal_(weight)
    return core


def literal(
    core: NativeSparseAttention, head: int, q: Tensor, k: Tensor, v: Tensor, gates: Tensor
) -> Tensor:
    """NSA of one head (N, D), token by token, with mean compression (fla-org's choice)."""
    length, width = q.shape
    size, mixed = core.block_size, torch.zeros_like(q)
    maps = core.key_map[head], core.value_map[head]

    def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return (keys @ query / width**0.5).softmax(0) @ values

    for t in range(length):
        last = t if core.causal else length - 1
        own, whole = t // size, (t + 1) // size  # eq. 7: also the own one, at its end
        whole = whole if core.causal else last // size + 1
        cut = [slice(i * size, (i + 1) * size) for i in range(whole)]
        branches = [torch.zeros(width)]
        best: list[int] = []
        if whole:
            keys, values = (
                torch.stack([x[c].mean(0) for c in cut]) @ m
                for x, m in zip((k, v), maps, strict=True)
            )
            branches = [attend(q[t], keys, values)]
            ranked = (keys @ q[t]).argsort(descending=True).tolist()
            best = [i for i in ranked if i != own][: core.top_k - 1]
        at = [j for i in [*best, own] for j in range(i * size, (i + 1) * size) if j <= last]
        near = [j for j in range(last + 1) if abs(j - t) < core.window]
        branches += [attend(q[t], k[at], v[at]), attend(q[t], k[near], v[near])]
        weight = gates[t].clone()
        if core.normalize:
            weight = weight * torch.tensor([float(whole > 0), 1.0, 1.0])
            weight = weight / weight.sum()
        mixed[t] = sum(w * branch for w, branch in zip(weight, branches, strict=True))
    return mixed


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("length", "size", "top_k"), [(23, 4, 3), (24, 5, 1), (6, 8, 2)])
def test_equals_the_published_branches(length, size, top_k, normalize, causal) -> None:
    core = NativeSparseAttention(
        16, 2, causal=causal, block_size=size, top_k=top_k, window=6, normalize=normalize
    )
    random_maps(core)
    x, (q, k, v) = torch.randn(2, length, 16), torch.randn(3, 2, 2, length, 8).unbind()
    with torch.no_grad():
        found, _ = core(q, k, v, hidden=x)
        gates = core.gates(x).sigmoid().view(2, length, 2, 3)
        for row in range(2):
            for head in range(2):
                heads = (part[row, head] for part in (q, k, v))
                expected = literal(core, head, *heads, gates[row, :, head])
                torch.testing.assert_close(found[row, head], expected)


@pytest.mark.parametrize("read", [0, 7, 12])
@pytest.mark.parametrize("normalize", [False, True])
def test_decoding_reads_what_the_maps_and_gates_have_learnt(normalize: bool, read: int) -> None:
    options = {"block_size": 4, "top_k": 2, "window": 6, "normalize": normalize}
    core = random_maps(NativeSparseAttention(16, 2, causal=True, **options))
    layer, x = MultiHeadAttention(core).eval(), torch.randn(2, 23, 16)
    with torch.no_grad():
        first, cache = layer.prefill(x[:, :read], layer.cache(x))
        found = [first]
        for token in x[:, read:].split(1, dim=1):
            values, cache = layer.step(token, cache)
            found.append(values)
        torch.testing.assert_close(torch.cat(found, 1), layer(x).values)


def test_the_tasks_loss_trains_the_choice() -> None:
    layer = MultiHeadAttention(NativeSparseAttention(16, 2, causal=True, block_size=4, top_k=2))
    layer(torch.randn(2, 21, 16)).values.square().sum().backward()
    for parameter in layer.core.parameters():
        assert parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("option", ["block_size", "top_k", "window"])
def test_options_are_at_least_one(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be at least 1, got 0"):
        NativeSparseAttention(8, 2, **{option: 0})
