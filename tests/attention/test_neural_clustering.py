"""Neural clustering attention against the paper, written out with loops."""

import math

import pytest
import torch
from torch import Tensor

from clusterformer.attention import (
    PAPER_FORM,
    FullAttention,
    MultiHeadAttention,
    NeuralClusteringAttention,
)
from clusterformer.kernels import dense_attention
from clusterformer.losses import clustering_loss


def paper_attention(
    layer: MultiHeadAttention, x: Tensor, clusters: int, masked: bool
) -> tuple[Tensor, list[int], Tensor]:
    """Equations 2-10 and 12-14 for one sequence (N, E), one step at a time."""
    core = layer.core
    length, width = x.shape
    mapped = x @ core.space.weight.T  # X W^C
    scores = torch.stack([core.centroids[i] @ mapped.T for i in range(clusters)]) / width**0.5
    memberships = torch.stack([row.exp() / row.exp().sum() for row in scores])  # eq. 2
    updated = torch.stack(
        [sum(memberships[i, j] * mapped[j] for j in range(length)) for i in range(clusters)]
    )  # eq. 3
    assignment = [int(memberships[:, j].argmax()) for j in range(length)]  # eq. 4
    order = sorted(range(length), key=lambda j: assignment[j])  # eq. 5; Python's sort is stable
    w = math.ceil(length / clusters)
    blocks = [order[i : i + w] for i in range(0, length, w)]
    out = torch.zeros(length, width)
    heads, d = core.num_heads, width // core.num_heads
    q, k, v = layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)
    for i, queries in enumerate(blocks):
        keys = list(dict.fromkeys(blocks[i - 1] + queries))  # eq. 8; one block is seen once
        for u in queries:
            seen = [j for j in keys if not masked or j <= u]
            for h in range(heads):
                part = slice(h * d, (h + 1) * d)
                logits = torch.stack([q[u, part] @ k[j, part] / d**0.5 for j in seen])
                weights = logits.softmax(0)
                out[u, part] = sum(
                    weight * v[j, part] for weight, j in zip(weights, seen, strict=True)
                )
    return layer.out_proj(out), assignment, updated


@pytest.mark.parametrize("causal", [False, "masked"])
@pytest.mark.parametrize(("length", "clusters"), [(3, 2), (7, 3), (7, 4), (6, 9)])
def test_the_papers_form_is_the_papers_equations(causal, length: int, clusters: int) -> None:
    core = NeuralClusteringAttention(8, 2, num_clusters=clusters, causal=causal, **PAPER_FORM)
    layer = MultiHeadAttention(core)
    x = torch.randn(2, length, 8)
    values, grouping = layer(x)
    for row in range(2):
        expected, assignment, updated = paper_attention(layer, x[row], clusters, bool(causal))
        assert grouping.assignment[row].tolist() == assignment
        torch.testing.assert_close(grouping.centroids[row], updated)
        torch.testing.assert_close(values[row], expected)


@pytest.mark.parametrize("temperature", [0.1, 2.0])
def test_the_cosine_is_divided_by_the_temperature_in_equations_2_to_4(temperature: float) -> None:
    core = NeuralClusteringAttention(16, 2, num_clusters=4, temperature=temperature)
    x = torch.randn(2, 13, 16)
    grouping = MultiHeadAttention(core)(x).grouping
    for row in range(2):
        z, c = (
            torch.nn.functional.normalize(y, dim=-1) for y in (core.space(x[row]), core.centroids)
        )
        memberships = (c @ z.T / temperature).softmax(1)
        assert torch.equal(grouping.assignment[row], memberships.argmax(0))
        found, expected = grouping.centroids[row], memberships @ z
        torch.testing.assert_close(found, expected)
        weight, weights = torch.randn_like(found), [core.space.weight, core.centroids]
        gradients = (
            torch.autograd.grad((updated * weight).sum(), weights, retain_graph=True)
            for updated in (found, expected)
        )
        for ours, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [7, 23])
@pytest.mark.parametrize(
    ("clusters", "look_ahead", "causal"),
    [
        (1, 0, False),
        (2, 0, False),
        (1, 1, False),
        (2, 1, False),
        (3, 1, False),
        (1, 0, "masked"),
        (2, 0, "masked"),
    ],
)
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_few_blocks_are_full_attention(length, clusters, look_ahead, similarity, causal) -> None:
    core = NeuralClusteringAttention(
        32, 4, causal=causal, num_clusters=clusters, coupling=False, similarity=similarity,
        look_ahead=look_ahead,
    )  # fmt: skip
    layer = MultiHeadAttention(core)
    full = MultiHeadAttention(FullAttention(32, 4, causal=bool(causal)))
    full.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.startswith("core.")})
    x = torch.randn(3, length, 32, requires_grad=True)
    mask = torch.arange(length) < torch.tensor([length, length - 2, 1])[:, None]
    ours, theirs = layer(x, mask).values[mask], full(x, mask).values[mask]
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    (gradient,) = torch.autograd.grad((ours * weight).sum(), x)
    (expected,) = torch.autograd.grad((theirs * weight).sum(), x)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("causal", [False, "masked", True])
def test_short_texts_have_full_attention_in_any_batch(causal) -> None:
    core = NeuralClusteringAttention(
        32, 4, causal=causal, num_clusters=5, block_size=3, chunk_size=2, dense_length=10
    )
    layer = MultiHeadAttention(core)
    full = MultiHeadAttention(FullAttention(32, 4, causal=bool(causal)))
    full.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.startswith("core.")})
    x = torch.randn(3, 23, 32)
    mask = torch.stack([torch.ones(23), torch.rand(23) < 0.4, torch.arange(23) < 10]).bool()
    mixed = layer(x, mask)
    for row in (1, 2):
        text = x[row][mask[row]][None]
        single = layer(text)
        assert single.grouping is None
        torch.testing.assert_close(single.values, full(text).values)
        torch.testing.assert_close(mixed.values[row][mask[row]], single.values[0])
    torch.testing.assert_close(mixed.values[0], layer(x[:1]).values[0])
    assert not torch.allclose(mixed.values[0], full(x[:1]).values[0], atol=1e-3)
    seen = core.keys_seen(mixed.grouping, mask)
    assert (seen[1:][mask[1:]] == 1).all()
    if causal is True:
        assert (seen[0, :10] == 1).all()
        assert seen[0, 10:].max() <= 4 / 11
    if not causal:
        assert seen[0, :21].tolist() == pytest.approx(21 * [8 / 23], abs=1 / 23)


def test_a_width_in_tokens_is_the_same_in_any_text() -> None:
    """And a number of clusters without it divides any text, as in the paper."""
    for options, tokens in (
        ({"block_size": 4, "dense_length": 0}, [12, 12]),
        ({}, [9, 18]),
        ({"min_width": 6}, [18, 18]),
    ):
        core = NeuralClusteringAttention(32, 4, num_clusters=8, **options)
        for length, expected in zip((24, 48), tokens, strict=True):
            mask = torch.ones(1, length, dtype=torch.bool)
            grouping = core.grouping_of(torch.randn(1, length, 32), None, None)
            assert float(core.keys_seen(grouping, mask)[0, 0]) * length == pytest.approx(expected)
    default = NeuralClusteringAttention(32, 4)
    assert (default.num_clusters, default.block_size, default.dense_length) == (16, 64, 512)
    assert NeuralClusteringAttention(32, 4, num_clusters=16).dense_length == 0
    assert NeuralClusteringAttention(32, 4, block_size=300).dense_length == 900
    assert NeuralClusteringAttention(32, 4, causal=True).dense_length == 512
    assert NeuralClusteringAttention(32, 4, causal=True, num_clusters=16).dense_length == 0
    assert NeuralClusteringAttention(32, 4, causal=True, chunk_size=400).dense_length == 800


def test_one_cluster_of_one_chunk_is_causal_full_attention() -> None:
    core = NeuralClusteringAttention(
        32, 4, causal=True, num_clusters=1, chunk_size=64, coupling=False
    )
    layer, full = MultiHeadAttention(core), MultiHeadAttention(FullAttention(32, 4, causal=True))
    full.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.startswith("core.")})
    x = torch.randn(2, 50, 32)
    torch.testing.assert_close(layer(x).values, full(x).values)


def strict_attention(layer: MultiHeadAttention, x: Tensor) -> Tensor:
    """The strict causal form for one sequence, by the definition of who sees whom."""
    core, length = layer.core, x.shape[0]
    z = torch.nn.functional.normalize(core.space(x), dim=-1)
    cluster = (torch.nn.functional.normalize(core.centroids, dim=-1) @ z.T).argmax(0).tolist()
    rank = [cluster[:t].count(cluster[t]) for t in range(length)]
    chunk = [r // core.chunk_size for r in rank]
    q, k, v = layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)
    d, out = core.head_width, torch.zeros_like(x)
    for t in range(length):
        for h in range(core.num_heads):
            if t < core.dense_length:
                seen = list(range(t + 1))
            elif h < core.local_heads:
                first = max(0, t // core.local_window - 1) * core.local_window
                seen = list(range(first, t + 1))
            else:
                seen = [
                    s
                    for s in range(t + 1)
                    if cluster[s] == cluster[t] and chunk[t] - chunk[s] <= core.look_back
                ]
            part = slice(h * d, (h + 1) * d)
            logits = k[seen][:, part] @ q[t, part] / d**0.5
            if core.coupling and h >= core.local_heads and t >= core.dense_length:
                logits = logits + core.log_alpha.exp() * (z[seen] @ z[t])
            out[t, part] = logits.softmax(0) @ v[seen][:, part]
    return layer.out_proj(out)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"look_back": 0},
        {"look_back": 2, "chunk_size": 2},
        {"local_heads": 2, "local_window": 3},
        {"local_heads": 4, "local_window": 3},
        {"coupling": False, "num_clusters": 1},
        {"dense_length": 20, "chunk_size": 2},
        {"dense_length": 6, "local_heads": 2, "local_window": 3},
    ],
    ids=str,
)
def test_the_strict_form_is_its_definition(options) -> None:
    core = NeuralClusteringAttention(
        32, 4, causal=True, **{"num_clusters": 3, "chunk_size": 4} | options
    )
    layer = MultiHeadAttention(core)
    x = torch.randn(2, 45, 32, requires_grad=True)
    values = layer(x).values
    expected = torch.stack([strict_attention(layer, row) for row in x])
    torch.testing.assert_close(values, expected)
    weight, inputs = torch.randn_like(values), [x, *layer.parameters()]
    ours, theirs = (
        torch.autograd.grad((out * weight).sum(), inputs, allow_unused=True, materialize_grads=True)
        for out in (values, expected)
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"num_clusters": 3, "look_ahead": 0},
        {"num_clusters": 3, **PAPER_FORM},
        {"num_clusters": 8},
        {"num_clusters": 8, "min_width": 5},
        {"num_clusters": 8, "causal": "masked"},
        {"num_clusters": 3, "causal": True, "chunk_size": 4, "local_heads": 1, "local_window": 5},
        {"num_clusters": 3, "causal": True, "chunk_size": 4, "dense_length": 20},
    ],
    ids=str,
)
def test_short_texts_as_one_product_select_what_blocks_select(
    options, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients are equal to rounding; only the way of computing differs."""
    layer = MultiHeadAttention(NeuralClusteringAttention(32, 4, **options))
    x = torch.randn(3, 47, 32, requires_grad=True)
    mask = torch.arange(47) < torch.tensor([47, 20, 1])[:, None] if padded else None
    found = []
    for longest in (256, 0):
        monkeypatch.setattr(dense_attention, "DENSE_LENGTH", longest)
        values = layer(x, mask).values if mask is None else layer(x, mask).values[mask]
        weights = [p for p in layer.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(
            values.square().sum(), [x, *weights], allow_unused=True, materialize_grads=True
        )
        found.append((values, *gradients))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_the_masked_form_leaks_as_its_docstring_says() -> None:
    """If this ever fails the docstring's warning is out of date."""
    layer = MultiHeadAttention(
        NeuralClusteringAttention(32, 4, causal="masked", num_clusters=8, **PAPER_FORM)
    )
    x = torch.randn(1, 64, 32)
    changed = torch.cat([x[:, :21], torch.randn(1, 43, 32)], 1)
    moved = (layer(changed).values - layer(x).values)[0, :21].abs().amax(-1) > 1e-4
    assert moved.any()


@pytest.mark.parametrize("alpha", [0.5, 3.0])
def test_the_coupling_begins_at_alpha(alpha: float) -> None:
    core = NeuralClusteringAttention(32, 4, num_clusters=4, alpha=alpha)
    assert core.log_alpha.exp().item() == pytest.approx(alpha)


def test_the_task_loss_reaches_the_clustering_only_through_coupling() -> None:
    x = torch.randn(2, 24, 32)
    for coupling in (False, True):
        layer = MultiHeadAttention(
            NeuralClusteringAttention(32, 4, num_clusters=4, coupling=coupling)
        )
        layer(x).values.square().sum().backward()
        assert (layer.core.space.weight.grad is not None) is coupling


def test_centroids_go_up() -> None:
    below = MultiHeadAttention(NeuralClusteringAttention(32, 4, num_clusters=4))
    above = MultiHeadAttention(NeuralClusteringAttention(32, 4, num_clusters=4))
    above.core.inherit()
    x = torch.randn(2, 24, 32)
    with pytest.raises(ValueError, match="no centroids of its own"):
        above(x)
    grouping = below(x).grouping
    out = above(x, previous=grouping)
    z, c = (
        torch.nn.functional.normalize(y, dim=-1) for y in (above.core.space(x), grouping.centroids)
    )
    memberships = (c @ z.mT / above.core.temperature).softmax(2)
    assert torch.equal(out.grouping.assignment, memberships.argmax(1))
    assert "core.centroids" not in dict(above.named_parameters())
    clustering_loss(out.grouping, torch.ones(2, 24, dtype=torch.bool)).sum().backward()
    assert below.core.centroids.grad.any()


def test_a_strict_layer_keeps_its_own_centroids() -> None:
    core = NeuralClusteringAttention(32, 4, causal=True)
    core.inherit()
    assert core.centroids is not None


@pytest.mark.parametrize("dense_length", [0, 50])
def test_decoding_takes_bounded_memory(dense_length: int) -> None:
    core = NeuralClusteringAttention(
        32, 4, causal=True, num_clusters=3, chunk_size=4, dense_length=dense_length
    )
    layer = MultiHeadAttention(core)
    cache = layer.cache(torch.zeros(2, 1, 32))
    with torch.no_grad():
        for _ in range(100):
            _, cache = layer.step(torch.randn(2, 1, 32), cache)
    tokens = 3 * 2 * 4  # clusters, chunks in sight, tokens a chunk
    numbers = 2 * 4 * (8 + 16)  # keys and values, heads, D + F
    assert sum(x[0].numel() for x in cache) <= tokens * (numbers + 1) + 200


@pytest.mark.parametrize("read", [1, 9, 10, 11, 30])
@pytest.mark.parametrize("local_heads", [0, 1, 4])
def test_decoding_goes_on_from_any_prompt(read: int, local_heads: int) -> None:
    """Shorter than, as long as, and longer than the tokens that see all before them."""
    core = NeuralClusteringAttention(
        32, 4, causal=True, num_clusters=3, chunk_size=4, dense_length=10,
        look_back=2, local_heads=local_heads, local_window=3,
    )  # fmt: skip
    layer, x = MultiHeadAttention(core, rotary_base=100.0).eval(), torch.randn(2, 40, 32)
    with torch.no_grad():
        values, cache = layer.prefill(x[:, :read], layer.cache(x))
        found = [values]
        for token in x[:, read:].split(1, dim=1):
            values, cache = layer.step(token, cache)
            found.append(values)
        torch.testing.assert_close(torch.cat(found, 1), layer(x).values)


def test_the_first_tokens_of_a_text_are_keys_of_later_ones() -> None:
    """And the losses of a long text reach the clusters; a short text has none."""
    core = NeuralClusteringAttention(32, 4, causal=True, num_clusters=2, dense_length=10)
    layer, x = MultiHeadAttention(core), torch.randn(1, 24, 32, requires_grad=True)
    assert layer(x[:, :10]).grouping is None
    out = layer(x)
    (gradient,) = torch.autograd.grad(out.values[0, 20].sum(), x, retain_graph=True)
    assert (gradient[0, :10] != 0).any()
    assert (gradient[0, 21:] == 0).all()
    out.grouping.centroids.square().sum().backward()
    assert (core.centroids.grad != 0).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_clusters": 0}, "num_clusters must be at least 1, got 0"),
        ({"look_back": -1}, "look_back must be at least 0"),
        ({"similarity": "euclid"}, "similarity must be"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"alpha": -1.0}, "alpha must be above 0 and finite, got -1.0"),
        ({"similarity": "dot"}, "coupling, .* need similarity"),
        ({"causal": True, "look_ahead": 1}, "look_ahead must be 0 with causal=True"),
        ({"causal": True, "local_heads": 5}, "local_heads must be in"),
    ],
)
def test_options_are_checked(options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeuralClusteringAttention(32, 4, **options)


@pytest.mark.parametrize("options", [{"num_clusters": 5}, {"cluster_width": 8}], ids=str)
def test_centroids_of_another_shape_are_not_inherited(options) -> None:
    x = torch.randn(2, 30, 32)
    below = MultiHeadAttention(NeuralClusteringAttention(32, 4, **{"num_clusters": 4} | options))
    layer = MultiHeadAttention(NeuralClusteringAttention(32, 4, num_clusters=4))
    with pytest.raises(ValueError, match=r"centroids of previous must be \(2, 4, 16\), got"):
        layer(x, previous=below(x).grouping)
