"""Clustered and improved clustered attention: limits, equations, proposition 2."""

import pytest
import torch
from torch import Tensor

from clusterformer.attention import (
    ClusteredAttention,
    FullAttention,
    ImprovedClusteredAttention,
    MultiHeadAttention,
)
from clusterformer.attention.base import AttentionCore
from clusterformer.clustering.hamming import hamming_kmeans

WIDTH, HEADS = 16, 2


def like(full: MultiHeadAttention, core: AttentionCore) -> MultiHeadAttention:
    layer = MultiHeadAttention(core)
    layer.load_state_dict(full.state_dict(), strict=False)
    return layer


def rows(length: int = 23, batch: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as a core gets them, queries in a few heaps."""
    heaps = 3 * torch.randn(batch, HEADS, 4, WIDTH // HEADS)
    chosen = heaps[:, :, torch.randint(4, (length,))]
    shape = batch, HEADS, length, WIDTH // HEADS
    return chosen + torch.randn(shape), 2 * torch.randn(shape), torch.randn(shape)


def weights(core: AttentionCore, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The attention matrix (B, H, N, N), read off by values of one key at a time."""
    batch, heads, length, width = q.shape
    parts = []
    for first in range(0, length, width):
        unit = torch.eye(length)[:, first : first + width]
        v = torch.nn.functional.pad(unit, (0, width - unit.shape[1])).expand(batch, heads, -1, -1)
        values, grouping = core(q, k, v, hidden=q)
        parts.append(values[..., : unit.shape[1]])
    return torch.cat(parts, -1), grouping.assignment


def literal(q: Tensor, k: Tensor, assignment: Tensor, top_k: int) -> Tensor:
    """The matrix of eq. 10 of one head; that of eq. 4 and 6 with top_k = 0."""
    found = torch.zeros(len(q), len(k))
    scale = q.shape[-1] ** -0.5
    for cluster in assignment.unique():
        own = assignment == cluster
        shared = (scale * k @ q[own].mean(0)).softmax(0)
        top = shared.topk(top_k).indices
        for i in own.nonzero()[:, 0]:
            found[i] = shared
            found[i, top] = shared[top].sum() * (scale * k[top] @ q[i]).softmax(0)
    return found


@pytest.mark.parametrize("mask", [None, [31, 17, 2]])
@pytest.mark.parametrize("core", [ClusteredAttention, ImprovedClusteredAttention])
def test_a_cluster_for_each_query_is_full_attention(core, mask) -> None:
    full = MultiHeadAttention(FullAttention(WIDTH, HEADS))
    x = torch.randn(3, 31, WIDTH)
    mask = mask and torch.arange(31) < torch.tensor(mask)[:, None]
    layer = like(full, core(WIDTH, HEADS, num_clusters=31))
    found, expected = layer(x, mask).values, full(x, mask).values
    if mask is not None:
        found, expected = found[mask], expected[mask]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("top_k", [31, 100])
def test_all_keys_exact_is_full_attention(top_k: int) -> None:
    full = MultiHeadAttention(FullAttention(WIDTH, HEADS))
    x = torch.randn(3, 31, WIDTH)
    mask = torch.arange(31) < torch.tensor([31, 17, 2])[:, None]
    layer = like(full, ImprovedClusteredAttention(WIDTH, HEADS, num_clusters=3, top_k=top_k))
    torch.testing.assert_close(layer(x, mask).values[mask], full(x, mask).values[mask])


@pytest.mark.parametrize("top_k", [0, 1, 5])
def test_weights_are_those_of_the_equations(top_k: int) -> None:
    q, k, _ = rows()
    if top_k:
        core: AttentionCore = ImprovedClusteredAttention(WIDTH, HEADS, num_clusters=4, top_k=top_k)
    else:
        core = ClusteredAttention(WIDTH, HEADS, num_clusters=4)
    found, assignment = weights(core, q, k)
    for b in range(q.shape[0]):
        for h in range(HEADS):
            expected = literal(q[b, h], k[b, h], assignment[b, h], top_k)
            torch.testing.assert_close(found[b, h], expected)


def test_improved_is_never_further_from_full_than_plain() -> None:
    """Proposition 2, for every query."""
    q, k, _ = rows(length=40)
    full = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).softmax(-1)
    plain, _ = weights(ClusteredAttention(WIDTH, HEADS, num_clusters=4), q, k)
    far = (plain - full).abs().sum(-1)
    for top_k in (4, 16):
        core = ImprovedClusteredAttention(WIDTH, HEADS, num_clusters=4, top_k=top_k)
        near = (weights(core, q, k)[0] - full).abs().sum(-1)
        assert (near <= far + 1e-5).all()
        assert near.mean() < 0.9 * far.mean()


@pytest.mark.parametrize("top_k", [0, 5])
def test_gradients_are_those_of_a_constant_assignment(top_k: int) -> None:
    inputs = [x.requires_grad_() for x in rows(batch=1)]
    grad = torch.randn_like(inputs[0])
    options = {"top_k": top_k} if top_k else {}
    kind = ImprovedClusteredAttention if top_k else ClusteredAttention
    values, grouping = kind(WIDTH, HEADS, num_clusters=4, **options)(*inputs, hidden=inputs[0])
    found = torch.autograd.grad(values, inputs, grad)
    q, k, v = (x[0] for x in inputs)
    matrices = [literal(q[h], k[h], grouping.assignment[0, h], top_k) for h in range(HEADS)]
    expected = torch.autograd.grad(torch.stack(matrices) @ v, inputs, grad[0])
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("iterations", [0, 1, 8])
def test_queries_are_clustered_in_that_many_iterations(iterations: int) -> None:
    q = torch.randn(1, HEADS, 60, WIDTH // HEADS)
    core = ClusteredAttention(WIDTH, HEADS, num_clusters=7, iterations=iterations)
    _, grouping = core(q, q, q, hidden=q)
    expected = hamming_kmeans(core.hash(q[0]), 7, iterations=iterations)
    assert torch.equal(grouping.assignment[0], expected)


def test_memory_of_another_length() -> None:
    full = MultiHeadAttention(FullAttention(WIDTH, HEADS))
    layer = like(full, ImprovedClusteredAttention(WIDTH, HEADS, num_clusters=2, top_k=64))
    x, memory = torch.randn(2, 7, WIDTH), torch.randn(2, 50, WIDTH)
    torch.testing.assert_close(layer(x, memory=memory).values, full(x, memory=memory).values)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_clusters": 0}, "num_clusters must be at least 1, got 0"),
        ({"iterations": -1}, "iterations must be at least 0, got -1"),
        ({"bits": 65}, "bits must be in 1..63, got 65"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImprovedClusteredAttention(WIDTH, HEADS, **options)


@pytest.mark.slow
@pytest.mark.parametrize("improved", [False, True])
def test_equals_the_public_implementation_on_the_same_clusters(improved: bool, monkeypatch) -> None:
    """pytorch-fast-transformers 0.4.0, its planes and clusters handed to ours."""
    public = pytest.importorskip("fast_transformers.attention")
    masking = pytest.importorskip("fast_transformers.masking")
    from clusterformer.attention import clustered

    kind = public.ImprovedClusteredAttention if improved else public.ClusteredAttention
    options = {"topk": 8} if improved else {}
    theirs = kind(12, bits=63, attention_dropout=0.0, **options)
    inputs = [x.requires_grad_() for x in rows(length=60)]
    group, clusters = theirs._create_query_groups, []

    def create(*arguments):
        groups, order = group(*arguments)
        clusters.append(torch.empty_like(groups[0]).scatter(-1, order, groups[0]))
        return groups, order

    monkeypatch.setattr(theirs, "_create_query_groups", create)
    lengths = masking.LengthMask(torch.full((3,), 60))
    moved = [x.transpose(1, 2) for x in inputs]
    expected = theirs(*moved, masking.FullMask(60), lengths, lengths).transpose(1, 2)

    assignment = clusters[0].long().flatten(0, 1)
    monkeypatch.setattr(clustered, "hamming_kmeans", lambda *_: assignment)
    ours = ImprovedClusteredAttention if improved else ClusteredAttention
    core = ours(WIDTH, HEADS, num_clusters=12, **({"top_k": 8} if improved else {}))
    found, _ = core(*inputs, hidden=inputs[0])
    torch.testing.assert_close(found, expected)
    # Theirs has no gradient through the mass m of eq. 9; ours is held to eq. 10 above.
    same = inputs[2:] if improved else inputs
    grad = torch.randn_like(found)
    ours_and_theirs = (torch.autograd.grad(out, same, grad) for out in (found, expected))
    for mine, other in zip(*ours_and_theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)
