"""The share of tokens that each token attends to, against influence measured by gradients."""

import inspect
import math

import pytest
import torch
from default_dtype import default_dtype
from torch import Tensor

from clusterformer.attention import (
    PAPER_FORM,
    AttentionCore,
    BlockTopKAttention,
    FullAttention,
    KeyClusteringAttention,
    LocalAttention,
    MultiHeadAttention,
    NeuralClusteringAttention,
    QueryKeyClusteringAttention,
    ReformerAttention,
    RoutingAttention,
    SharedQKAttention,
    mechanisms,
    visibility,
)
from clusterformer.attention.visibility import sees

SMALL = {"num_clusters": 5, "chunk_size": 4, "top_k": 4, "block_size": 7, "local_window": 3}
FORMS = [(cls, causal) for cls in mechanisms() for causal in cls.causal_forms]


def name(value: object) -> str:
    return value.__name__ if isinstance(value, type) else f"causal={value}"


def build(cls: type[AttentionCore], causal: object) -> MultiHeadAttention:
    options = {k: v for k, v in SMALL.items() if k in inspect.signature(cls).parameters}
    return MultiHeadAttention(cls(32, 4, causal=causal, **options)).eval()


def mask_of(lengths: list[int], longest: int) -> Tensor:
    return torch.arange(longest) < torch.tensor(lengths)[:, None]


def met_by_gradients(layer: MultiHeadAttention, x: Tensor, mask: Tensor) -> Tensor:
    """Whose values move the output of each token, (B, H, N, N), by brute force."""
    core = layer.core
    q = layer._split(layer.q_proj(x))
    k = q if core.shared_qk else layer._split(layer.k_proj(x))
    v = torch.zeros_like(q).requires_grad_()
    mixed, _ = core(q, k, v, hidden=x, query_mask=mask, key_mask=mask)
    seed, met = torch.randn(core.head_width), []
    for token in range(x.shape[1]):
        (gradient,) = torch.autograd.grad((mixed[:, :, token] * seed).sum(), v, retain_graph=True)
        met.append(gradient.abs().amax(-1) > 0)  # (B, H, N)
    return torch.stack(met, 2)


def influence(layer: MultiHeadAttention, x: Tensor, mask: Tensor) -> Tensor:
    """Share of tokens whose values move the output of each token, mean over heads."""
    core, met = layer.core, met_by_gradients(layer, x, mask)
    if isinstance(core, ReformerAttention | SharedQKAttention):
        met = met | torch.eye(x.shape[1], dtype=torch.bool)  # a last resort
    counts = (met & mask[:, None, None]).sum(-1).float()
    there = mask.cumsum(-1) if core.causal else mask.sum(-1, keepdim=True)
    return (counts.mean(1) / there.clamp(min=1)).masked_fill(~mask, 0.0)


def measured(layer: MultiHeadAttention, x: Tensor, mask: Tensor) -> Tensor:
    return layer.core.keys_seen(layer(x, mask).grouping, mask)


@pytest.mark.parametrize(("cls", "causal"), FORMS, ids=name)
def test_every_mechanism_says_what_a_token_sees(cls, causal) -> None:
    torch.manual_seed(3)
    layer = build(cls, causal)
    x, mask = torch.randn(3, 29, 32), mask_of([29, 17, 1], 29)
    torch.testing.assert_close(measured(layer, x, mask), influence(layer, x, mask))


@pytest.mark.parametrize(("cls", "causal"), FORMS, ids=name)
def test_half_precision_changes_no_count(cls, causal) -> None:
    torch.manual_seed(3)
    layer = build(cls, causal)
    x, mask = torch.randn(3, 29, 32), mask_of([29, 17, 1], 29)
    grouping = layer(x, mask).grouping
    expected = layer.core.keys_seen(grouping, mask)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(layer.core.keys_seen(grouping, mask), expected)
    with default_dtype(torch.bfloat16):  # as Lightning sets it under bf16-true
        assert torch.equal(layer.core.keys_seen(grouping, mask), expected)


@pytest.mark.parametrize(
    "core",
    [
        NeuralClusteringAttention(32, 4, num_clusters=3, **PAPER_FORM),
        NeuralClusteringAttention(32, 4, num_clusters=4, look_back=2, look_ahead=2),
        NeuralClusteringAttention(32, 4, num_clusters=7, min_width=3),
        NeuralClusteringAttention(32, 4, num_clusters=7, causal="masked"),
        NeuralClusteringAttention(32, 4, num_clusters=3, chunk_size=3, causal=True, look_back=2),
        NeuralClusteringAttention(32, 4, num_clusters=3, chunk_size=3, causal=True, dense_length=9),
        NeuralClusteringAttention(
            32, 4, num_clusters=3, chunk_size=4, causal=True, local_heads=3, local_window=2
        ),
        NeuralClusteringAttention(32, 4, num_clusters=7, global_tokens=2),
        NeuralClusteringAttention(32, 4, num_clusters=7, global_tokens=1, num_clusterings=2),
        NeuralClusteringAttention(
            32, 4, num_clusters=3, chunk_size=3, causal=True, local_heads=2, num_clusterings=2
        ),
        NeuralClusteringAttention(
            32, 4, block_size=2, dense_length=0, global_tokens=1, local_heads=1, local_window=3
        ),
        QueryKeyClusteringAttention(
            32, 4, num_clusters=2, chunk_size=2, key_clusters=1, dense_length=9, local_window=3
        ),
        QueryKeyClusteringAttention(
            32, 4, num_clusters=3, chunk_size=2, dense_length=9, local_heads=1, causal=True
        ),
        ReformerAttention(32, 4, num_hashes=3, num_buckets=6),
        ReformerAttention(32, 4, num_hashes=4, chunk_size=4),
        ReformerAttention(32, 4, num_hashes=2, num_buckets=4, chunk_size=3, causal=True),
        ReformerAttention(32, 4, num_hashes=2, num_buckets=8, causal="masked"),
        RoutingAttention(32, 4, num_clusters=3, window=11),
        RoutingAttention(32, 4, num_clusters=6, local_heads=0),
        RoutingAttention(32, 4, local_heads=4, local_window=2),
        RoutingAttention(32, 4, num_clusters=5, window=9, causal="masked", local_heads=1),
        LocalAttention(32, 4, window=4),
        KeyClusteringAttention(32, 4, num_clusters=7, min_width=1),
    ],
    ids=lambda core: type(core).__name__,
)
@pytest.mark.parametrize("padded", [False, True])
def test_other_options_are_counted_too(core, padded: bool) -> None:
    torch.manual_seed(4)
    layer = MultiHeadAttention(core).eval()
    x = torch.randn(4, 23, 32)
    mask = torch.rand(4, 23) < 0.7 if padded else torch.ones(4, 23, dtype=torch.bool)
    torch.testing.assert_close(measured(layer, x, mask), influence(layer, x, mask))


def test_pairs_are_counted_in_pieces_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    core = RoutingAttention(32, 4, num_clusters=5, window=9, causal="masked", local_heads=1)
    layer = MultiHeadAttention(core).eval()
    x, mask = torch.randn(3, 29, 32), mask_of([29, 17, 1], 29)
    expected = measured(layer, x, mask)
    monkeypatch.setattr(visibility, "MAX_PAIRS", 2 * 5 * 9 * 9)  # two heads at a time
    assert torch.equal(measured(layer, x, mask), expected)


def test_two_blocks_of_three_are_two_thirds() -> None:
    for look_ahead, share in ((0, 2 / 3), (1, 1.0)):
        core = NeuralClusteringAttention(32, 4, num_clusters=3, look_ahead=look_ahead)
        layer = MultiHeadAttention(core)
        mask = mask_of([30, 12], 30)
        seen = measured(layer, torch.randn(2, 30, 32), mask)
        assert seen[mask].tolist() == pytest.approx([share] * 42)


def test_a_mechanism_that_says_nothing_is_unknown() -> None:
    class Quiet(FullAttention):
        sees_all = False

    assert Quiet(32, 4).keys_seen(None, mask_of([3], 4)) is None


def test_counting_makes_no_quadratic_matrix() -> None:
    """Two billion pairs would take seconds and gigabytes."""
    length = 2**16
    core = NeuralClusteringAttention(8, 1, causal=True, num_clusters=8, chunk_size=64)
    mask = torch.ones(1, length, dtype=torch.bool)
    grouping = core.grouping_of(torch.randn(1, length, 8), None, None)
    seen = core.keys_seen(grouping, mask)[0]
    assert seen[0] == 1
    assert not math.isnan(seen[-1])
    assert seen[-1] <= 128 / length


@pytest.mark.parametrize(
    "core",
    [
        NeuralClusteringAttention(32, 4, num_clusters=6, look_ahead=0),
        NeuralClusteringAttention(32, 4, num_clusters=6),
        NeuralClusteringAttention(32, 4, num_clusters=6, num_clusterings=4),
        ReformerAttention(32, 4, chunk_size=2),
        ReformerAttention(32, 4, num_hashes=3, chunk_size=2),
        RoutingAttention(32, 4, num_clusters=6, window=4, local_heads=0),
        KeyClusteringAttention(32, 4, num_clusters=7, min_width=1),
    ],
    ids=lambda core: type(core).__name__,
)
def test_it_is_known_whether_two_tokens_meet(core) -> None:
    torch.manual_seed(4)
    layer = MultiHeadAttention(core).eval()
    x, mask = torch.randn(3, 24, 32), torch.ones(3, 24, dtype=torch.bool)
    met = met_by_gradients(layer, x, mask).any(1)
    told = []
    for shift in range(1, 24):
        other = (torch.arange(24) + shift).expand(3, -1) % 24
        found = sees(layer(x, mask).grouping, other)
        assert torch.equal(found, met.gather(2, other[..., None])[..., 0])
        told.append(found)
    assert 0 < torch.stack(told).float().mean() < 1


def test_whom_a_token_sees_is_not_said_by_every_mechanism() -> None:
    layer = MultiHeadAttention(BlockTopKAttention(32, 4, block_size=4, top_k=1))
    grouping = layer(torch.randn(1, 24, 32)).grouping
    assert sees(grouping, torch.zeros(1, 24, dtype=torch.long)) is None
