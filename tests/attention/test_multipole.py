"""Multipole attention: limits, the algorithms literally, the parts of table 3, causality."""

import pytest
import torch
from torch import Tensor

from clusterformer.attention import FullAttention, MultiHeadAttention, MultipoleAttention
from clusterformer.attention.base import AttentionCore
from clusterformer.clustering.kmeans import kmeans

WIDTH, HEADS = 16, 2


def like(full: MultiHeadAttention, core: AttentionCore) -> MultiHeadAttention:
    layer = MultiHeadAttention(core)
    layer.load_state_dict(full.state_dict(), strict=False)
    return layer


def rows(length: int = 96, batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys in a few heaps, values that go with the keys, as trained models have."""
    shape = batch, HEADS, length, WIDTH // HEADS
    centres = torch.randn(2, batch, HEADS, 6, WIDTH // HEADS)
    q, k = (x[:, :, torch.randint(6, (length,))] + 0.5 * torch.randn(shape) for x in centres)
    v = k @ torch.randn(WIDTH // HEADS, WIDTH // HEADS) + 0.3 * torch.randn(shape)
    return 0.6 * q, 2 * k, v


def error(core: AttentionCore, *inputs: Tensor) -> float:
    """Relative squared error against full attention."""
    full, _ = FullAttention(WIDTH, HEADS, causal=core.causal)(*inputs, hidden=inputs[0])
    found, _ = core(*inputs, hidden=inputs[0])
    return float((found - full).square().sum() / full.square().sum())


def literal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    of_q: Tensor,
    of_k: Tensor,
    *,
    damped: bool = False,
    exact_clusters: int = 0,
) -> Tensor:
    """Algorithms 3, 5 and 4, cluster by cluster, of one head, and what goes beyond the paper."""
    out = torch.zeros_like(q)
    q = q * q.shape[-1] ** -0.5
    clusters = of_k.unique().tolist()
    for i in of_q.unique():
        point = q[of_q == i].mean(0)
        weight = (k @ point).softmax(0)
        share = {j: weight[of_k == j].sum() for j in clusters}
        exact = sorted(clusters, key=share.__getitem__)[len(clusters) - exact_clusters :]
        mass, keys, values = [], [], []
        dipole = torch.zeros(q.shape[1], q.shape[1])
        for j in clusters:
            own_k, own_v = k[of_k == j], v[of_k == j]
            scores = own_k @ point
            p = scores.softmax(0)
            if j in exact:
                mass += scores.unbind()
                keys += own_k.unbind()
                values += own_v.unbind()
                continue
            mass.append(scores.logsumexp(0))
            keys.append(p @ own_k)
            values.append(p @ own_v)
            spread = (own_v - own_v.mean(0)).T @ (own_k - own_k.mean(0)) / len(own_k)
            with_weight = 1 / p.square().sum() / len(own_k) if damped else 1.0
            dipole += share[j] * with_weight * spread
        masses = torch.stack(mass)
        for n in (of_q == i).nonzero()[:, 0]:
            residual = q[n] - point
            weights = (torch.stack(keys) @ residual + masses).softmax(0)
            out[n] = weights @ torch.stack(values) + dipole @ residual
    return out


@pytest.mark.parametrize("lengths", [[31, 31, 31], [31, 17, 2]])
@pytest.mark.parametrize("two_stage", [True, False])
@pytest.mark.parametrize("causal", [False, True])
def test_a_cluster_for_each_key_is_full_attention(causal, two_stage, lengths) -> None:
    full = MultiHeadAttention(FullAttention(WIDTH, HEADS, causal=causal))
    x = torch.randn(3, 31, WIDTH)
    mask = torch.arange(31) < torch.tensor(lengths)[:, None]
    options = {"causal": causal, "block_size": 4, "two_stage": two_stage}
    layer = like(full, MultipoleAttention(WIDTH, HEADS, num_clusters=32, **options))
    torch.testing.assert_close(layer(x, mask).values[mask], full(x, mask).values[mask])


@pytest.mark.parametrize("dipole", [True, False])
def test_a_cluster_for_each_query_is_full_attention(dipole: bool) -> None:
    """Then nothing sets a query apart from its centroid, and the first stage is exact."""
    full = MultiHeadAttention(FullAttention(WIDTH, HEADS))
    x, memory = torch.randn(3, 8, WIDTH), torch.randn(3, 50, WIDTH)
    layer = like(full, MultipoleAttention(WIDTH, HEADS, num_clusters=8, dipole=dipole))
    torch.testing.assert_close(layer(x, memory=memory).values, full(x, memory=memory).values)


@pytest.mark.parametrize("causal", [False, True])
def test_with_all_clusters_exact_it_is_full_attention(causal: bool) -> None:
    full = MultiHeadAttention(FullAttention(WIDTH, HEADS, causal=causal))
    x = torch.randn(3, 41, WIDTH)
    mask = torch.arange(41) < torch.tensor([41, 17, 2])[:, None]
    options = {"causal": causal, "block_size": 8, "num_clusters": 3, "exact_clusters": 3}
    layer = like(full, MultipoleAttention(WIDTH, HEADS, **options))
    torch.testing.assert_close(layer(x, mask).values[mask], full(x, mask).values[mask])


@pytest.mark.parametrize(
    "options",
    [{}, {"damped": True}, {"exact_clusters": 2}, {"damped": True, "exact_clusters": 1}],
    ids=str,
)
def test_the_algorithms_literally(options: dict) -> None:
    q, k, v = rows(length=40)
    core = MultipoleAttention(WIDTH, HEADS, num_clusters=5, cap=1.5, **options)
    found, grouping = core(q, k, v, hidden=q)
    of_k = kmeans(k.flatten(0, 1), 5, core.offset, iterations=3, cap=1.5).view(2, HEADS, 40)
    for b in range(2):
        for h in range(HEADS):
            assigned = grouping.assignment[b, h], of_k[b, h]
            expected = literal(q[b, h], k[b, h], v[b, h], *assigned, **options)
            torch.testing.assert_close(found[b, h], expected)


@pytest.mark.parametrize("causal", [False, True])
def test_each_part_lowers_the_error(causal: bool) -> None:
    """Table 3: of all parts, monopoles matter most; dipoles and two stages each help."""
    inputs = rows()
    options = {"causal": causal, "num_clusters": 6, "block_size": 16}

    def without(part: str) -> float:
        return error(MultipoleAttention(WIDTH, HEADS, **options, **{part: False}), *inputs)

    everything = error(MultipoleAttention(WIDTH, HEADS, **options), *inputs)
    assert everything < 0.05
    assert 1.1 * everything < without("dipole") < without("monopole")
    assert 1.1 * everything < without("two_stage") < without("monopole")


def test_more_clusters_and_more_iterations_lower_the_error() -> None:
    inputs = rows()
    errors = [error(MultipoleAttention(WIDTH, HEADS, num_clusters=c), *inputs) for c in (4, 12, 36)]
    assert errors[0] > 1.5 * errors[1] > 2 * errors[2]
    few, many = (
        error(MultipoleAttention(WIDTH, HEADS, num_clusters=12, iterations=i), *inputs)
        for i in (0, 5)
    )
    assert few > 1.1 * many


def test_exact_clusters_lower_the_error() -> None:
    inputs = rows()
    errors = [
        error(MultipoleAttention(WIDTH, HEADS, num_clusters=6, exact_clusters=exact), *inputs)
        for exact in (0, 1, 3, 6)
    ]
    assert errors[0] > 1.5 * errors[1] > 2 * errors[2]
    assert errors[3] < 1e-10


def test_damping_keeps_dipoles_from_overshooting_where_attention_is_peaked() -> None:
    q, k, v = rows()
    for sharpness, paper_helps in ((1, True), (6, False)):
        plain, paper, damped = (
            error(MultipoleAttention(WIDTH, HEADS, num_clusters=6, **form), sharpness * q, k, v)
            for form in ({"dipole": False}, {}, {"damped": True})
        )
        assert (paper < plain) is paper_helps
        assert damped < plain


def test_within_a_block_causal_attention_is_exact() -> None:
    inputs = rows(length=50)
    core = MultipoleAttention(WIDTH, HEADS, causal=True, num_clusters=2, block_size=50)
    assert error(core, *inputs) < 1e-10


def test_gradients_come_near_those_of_full_attention() -> None:
    inputs = [x.requires_grad_() for x in rows()]
    grad = torch.randn_like(inputs[0])
    for causal in (False, True):
        options = {"causal": causal, "num_clusters": 24, "block_size": 32}
        found, _ = MultipoleAttention(WIDTH, HEADS, **options)(*inputs, hidden=inputs[0])
        full, _ = FullAttention(WIDTH, HEADS, causal=causal)(*inputs, hidden=inputs[0])
        ours, theirs = (torch.autograd.grad(out, inputs, grad) for out in (found, full))
        for x, y in zip(ours, theirs, strict=True):
            assert (x - y).square().sum() < 0.1 * y.square().sum()


@pytest.mark.parametrize("exact", [0, 1])
def test_decoding_reads_only_its_cache(exact: int) -> None:
    """Rows of a cache can be picked, as beam search does, at any step."""
    options = {"num_clusters": 3, "block_size": 4, "exact_clusters": exact}
    core = MultipoleAttention(WIDTH, HEADS, causal=True, **options)
    layer = MultiHeadAttention(core).eval()
    x = torch.randn(3, 27, WIDTH)
    picked = torch.tensor([2, 0, 0])
    with torch.no_grad():
        cache, steps = layer.cache(x), []
        for position, token in enumerate(x.split(1, dim=1)):
            if position == 18:
                cache = tuple(part.index_select(0, picked) for part in cache)
            values, cache = layer.step(token[picked] if position >= 18 else token, cache)
            steps.append(values)
        torch.testing.assert_close(torch.cat(steps[18:], 1), layer(x[picked]).values[:, 18:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_clusters": 0}, "num_clusters must be at least 1, got 0"),
        ({"cap": 0.5}, "cap must be at least 1, got 0.5"),
        ({"exact_clusters": -1}, "exact_clusters must be at least 0, got -1"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"monopole": False, "dipole": False}, "at least one must be True"),
    ],
)
def test_impossible_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultipoleAttention(WIDTH, HEADS, **options)


@pytest.mark.slow
def test_a_compiled_training_takes_any_depth_of_the_tree() -> None:
    """The number of its levels depends on the length: the tree is no part of the graph."""
    torch._dynamo.reset()
    layer = MultiHeadAttention(MultipoleAttention(16, 2, causal=True, block_size=4, num_clusters=2))
    compiled = torch.compile(layer, dynamic=True, backend="aot_eager")
    for length in (5, 13, 30, 61, 120):
        found = []
        for form in (compiled, layer):
            torch.manual_seed(length)
            x = torch.randn(2, length, 16, requires_grad=True)
            with torch._dynamo.config.patch(error_on_recompile=length > 30):
                form(x).values.sin().sum().backward()
            found.append(x.grad)
        torch.testing.assert_close(*found)
