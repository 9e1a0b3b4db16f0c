"""Routing Transformer's attention against its definition written out with loops, and its peer."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.attention import FullAttention, MultiHeadAttention, RoutingAttention


def scores(core: RoutingAttention, x: Tensor, head: int) -> Tensor:
    """Cosine of centroids and layer-normalised rows of a head, (C, N)."""
    points = F.layer_norm(x[:, core.local_heads + head], (core.head_width,))
    return core.means.centroids[head] @ F.normalize(points, dim=-1).T


def definition(layer: MultiHeadAttention, x: Tensor) -> Tensor:
    """One sequence (N, E)."""
    core, length = layer.core, x.shape[0]
    projections = layer.q_proj, layer.k_proj, layer.v_proj
    q, k, v = (p(x).unflatten(-1, (core.num_heads, -1)) for p in projections)
    out = torch.zeros_like(q)

    def attended(t: int, keys: list[int], h: int) -> Tensor:
        return (k[keys, h] @ q[t, h] / core.head_width**0.5).softmax(0) @ v[keys, h]

    for h in range(core.local_heads):
        for t in range(length):
            chunk, ahead = t // core.local_window, 0 if core.causal else 1
            first, last = chunk - 1, chunk + ahead
            seen = [s for s in range(length) if first <= s // core.local_window <= last]
            out[t, h] = attended(t, [s for s in seen if not core.causal or s <= t], h)
    for routed in range(core.num_heads - core.local_heads):
        h = core.local_heads + routed
        queries = scores(core, q, routed)
        keys = queries if core.causal else scores(core, k, routed)
        if core.causal is True:
            cluster = queries.argmax(0).tolist()
            rank = [cluster[:t].count(cluster[t]) // core.chunk_size for t in range(length)]
            for t in range(length):
                near = [s for s in range(t + 1) if rank[t] - rank[s] <= 1]
                out[t, h] = attended(t, [s for s in near if cluster[s] == cluster[t]], h)
            continue
        window = min(length, core.window or math.ceil(length / core.num_clusters))
        results: dict[int, list[Tensor]] = {t: [] for t in range(length)}
        for c in range(core.num_clusters):
            seen = keys[c].argsort(descending=True)[:window].tolist()
            for t in queries[c].argsort(descending=True)[:window].tolist():
                visible = [s for s in seen if not core.causal or s <= t]
                results[t].append(attended(t, visible, h))
        for t, found in results.items():
            out[t, h] = torch.stack(found).mean(0) if found else v[t, h]
    return layer.out_proj(out.flatten(1))


@pytest.mark.parametrize("causal", [False, True, "masked"])
@pytest.mark.parametrize("local_heads", [0, 1, 3])
@pytest.mark.parametrize(
    ("length", "options"),
    [(1, {}), (2, {"window": 1}), (29, {}), (29, {"window": 3}), (5, {"num_clusters": 9})],
)
def test_it_is_its_definition(causal, local_heads: int, length: int, options) -> None:
    small = {"num_clusters": 4, "chunk_size": 3, "local_window": 4, "local_heads": local_heads}
    core = RoutingAttention(24, 3, causal=causal, **small | options)
    layer = MultiHeadAttention(core)
    x = torch.randn(2, length, 24, requires_grad=True)
    values = layer(x).values
    expected = torch.stack([definition(layer, row) for row in x])
    torch.testing.assert_close(values, expected)
    weight = torch.randn_like(values)
    (gradient,) = torch.autograd.grad((values * weight).sum(), x)
    (right,) = torch.autograd.grad((expected * weight).sum(), x)
    torch.testing.assert_close(gradient, right, rtol=1e-4, atol=1e-5)


def with_full_attention(layer: MultiHeadAttention) -> MultiHeadAttention:
    full = MultiHeadAttention(FullAttention(32, 4, causal=bool(layer.core.causal)))
    full.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.startswith("core.")})
    return full


@pytest.mark.parametrize("causal", [False, True, "masked"])
@pytest.mark.parametrize("window", [None, 64])
def test_one_cluster_of_all_tokens_is_full_attention(causal, window: int | None) -> None:
    core = RoutingAttention(
        32, 4, causal=causal, num_clusters=1, window=window, chunk_size=64, local_heads=0
    )
    layer = MultiHeadAttention(core)
    full = with_full_attention(layer)
    x = torch.randn(3, 43, 32, requires_grad=True)
    mask = torch.arange(43) < torch.tensor([43, 40, 1])[:, None]
    ours, theirs = layer(x, mask).values[mask], full(x, mask).values[mask]
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    (gradient,) = torch.autograd.grad((ours * weight).sum(), x)
    (expected,) = torch.autograd.grad((theirs * weight).sum(), x)
    torch.testing.assert_close(gradient, expected)


def test_a_window_of_all_local_tokens_is_full_attention() -> None:
    layer = MultiHeadAttention(RoutingAttention(32, 4, local_heads=4, local_window=64))
    x = torch.randn(2, 43, 32)
    out = layer(x)
    torch.testing.assert_close(out.values, with_full_attention(layer)(x).values)
    assert out.grouping is None


def test_a_token_in_no_cluster_gets_its_own_value() -> None:
    core = RoutingAttention(32, 1, num_clusters=2, window=1, local_heads=0)
    q, k, v = torch.randn(3, 1, 1, 9, 32)
    out, _ = core(q, k, v, hidden=v[:, 0])
    own = (out == v).all(-1).sum()
    assert 7 <= own <= 8  # all but the one or two queries that the centroids took


def test_of_equal_tokens_a_centroid_takes_the_first() -> None:
    core = RoutingAttention(32, 1, num_clusters=1, window=3, local_heads=0)
    x = torch.randn(32).expand(1, 1, 9, 32)
    _, grouping = core(x, x, x, hidden=x[:, 0])
    assert grouping.queries.sort().values.tolist() == [[[[0, 1, 2]]]]


@pytest.mark.parametrize("causal", [False, True, "masked"])
def test_centroids_follow_real_tokens_alone(causal) -> None:
    """Queries and keys; where causal queries alone, as keys are not compared with centroids."""
    core = RoutingAttention(32, 4, causal=causal, num_clusters=3, local_heads=1)
    q, k, v = torch.randn(3, 2, 4, 19, 8)
    mask = torch.arange(19) < torch.tensor([[19], [7]])
    core(q, k, v, hidden=torch.randn(2, 19, 32), key_mask=mask)
    expected = torch.zeros(3, 8)
    for x in (q,) if causal else (q, k):
        points = F.layer_norm(x[:, 1:], (8,)) / 8**0.5
        expected += points.transpose(1, 2)[mask].sum(0)
    torch.testing.assert_close(core.means.observed.sum(1), expected)


def test_centroids_that_do_not_decay_forget_all_but_the_last_batch() -> None:
    core = RoutingAttention(32, 4, causal=True, num_clusters=1, local_heads=0, decay=0.0)
    for _ in range(3):
        q, k, v = torch.randn(3, 2, 4, 19, 8)
        core(q, k, v, hidden=torch.randn(2, 19, 32))
    core.means.move()
    expected = F.normalize(F.layer_norm(q, (8,)).sum((0, 2)), dim=-1)
    torch.testing.assert_close(core.means.centroids[:, 0], expected)


def test_the_masked_form_leaks_as_its_docstring_says() -> None:
    """If this ever fails the docstring's warning is out of date."""
    layer = MultiHeadAttention(RoutingAttention(32, 4, causal="masked", num_clusters=8))
    x = torch.randn(1, 64, 32)
    changed = torch.cat([x[:, :21], torch.randn(1, 43, 32)], 1)
    moved = (layer(changed).values - layer(x).values)[0, :21].abs().amax(-1) > 1e-4
    assert moved.any()


def test_decoding_takes_bounded_memory() -> None:
    core = RoutingAttention(32, 4, causal=True, num_clusters=3, chunk_size=4, local_window=5)
    layer = MultiHeadAttention(core).eval()
    x = torch.randn(2, 150, 32)
    cache, steps = layer.cache(x), []
    with torch.no_grad():
        for token in x.split(1, dim=1):
            values, cache = layer.step(token, cache)
            steps.append(values)
    torch.testing.assert_close(torch.cat(steps, 1), layer(x).values)
    assert max(tensor.numel() for tensor in cache) == 2 * 2 * 3 * 8 * 8  # B H' C 2S D


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_clusters": 0}, "num_clusters must be at least 1, got 0"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"local_heads": 5}, "local_heads must be in 0..num_heads, got 5 with num_heads = 4"),
        ({"decay": 1.0}, "decay must be from 0 to below 1, got 1.0"),
    ],
)
def test_options_are_checked(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RoutingAttention(32, 4, **options)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, "masked"])
@pytest.mark.parametrize("window", [4, 16])
def test_it_equals_routing_transformer_on_the_same_members(
    causal, window: int, monkeypatch
) -> None:
    peer = pytest.importorskip("routing_transformer.routing_transformer")
    core = RoutingAttention(
        32, 4, causal=causal, num_clusters=16, window=window, local_heads=0
    ).eval()
    q, k, v = torch.randn(3, 2, 4, 64, 8)
    theirs = peer.KmeansAttention(16, window, 4, 8, causal=bool(causal)).eval()
    theirs.num_mem_kv = 0
    theirs.mem_key, theirs.mem_value = torch.nn.ParameterList(2 * [torch.zeros(4, 16, 0, 8)])
    members = [core._scores(x, None)[0].topk(window).indices.flatten(2) for x in (q, k)]
    members = iter([members[0], members[0] if causal else members[1]])
    monkeypatch.setattr(peer, "distribution", lambda *_: next(members))
    expected, _ = theirs(q, k, v)
    ours, _ = core(q, k, v, hidden=q)
    # The peer leaves 0 where we give the token's own value, and divides by 1.00001 times too.
    taken = (expected != 0).any(-1)
    assert not taken.all()
    torch.testing.assert_close(ours[taken], expected[taken], rtol=2e-5, atol=1e-5)
    torch.testing.assert_close(ours[~taken], v[~taken])
