"""Clusters of queries and of keys: the equations, what learns, and what each token meets."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.attention import QueryKeyClusteringAttention

WIDTH, HEADS, LENGTH = 32, 4, 41
SMALL = {"num_clusters": 3, "chunk_size": 4, "dense_length": 9, "local_heads": 1, "local_window": 5,
         "probes": 0}  # fmt: skip


def literal(
    core: QueryKeyClusteringAttention, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor
) -> Tensor:
    """Attend head by head and token by token, as the docstring says, (H - L, N, D)."""
    causal, size, length = bool(core.causal), core.chunk_size, len(hidden)
    out = torch.zeros(core.num_clusterings, length, core.head_width)
    heads = (core.num_clusterings, core.head_width)
    query = F.normalize((hidden @ core.query_space.weight.T).view(-1, *heads), dim=-1)
    key_space = core.query_space if core.shift_keys else core.key_space
    key = F.normalize((hidden @ key_space.weight.T).view(-1, *heads), dim=-1)
    by, of = query, key
    if core.clusters == "frozen":
        drawn = [(hidden @ weight.T).view(-1, *heads) for weight in core.drawn_spaces]
        by, of = drawn[0], drawn[-1]
    if core.shift_keys:
        key, of = (torch.stack([x[max(0, t - 1)] for t in range(length)]) for x in (key, of))
    for h in range(core.num_clusterings):
        wanted = (by[:, h] @ core.anchors[h].T).argmax(-1)
        offered = (of[:, h] @ core.anchors[h].T).topk(core.key_clusters).indices
        for t in range(length):
            if (t if causal else length - 1) < core.dense_length:
                seen = list(range(t + 1 if causal else length))
            else:
                held = [s for s in range(length) if wanted[t] in offered[s]]
                reached = sum(s <= t for s in held)
                chunk = max(0, reached - 1) // size
                last = reached if causal else (chunk + 2) * size
                seen = held[max(0, chunk - 1) * size : last]
            if not seen:
                out[h, t] = v[core.local_heads + h, t]
                continue
            ages = 0.3 * core.slow_recency[h] * torch.tensor(seen).float().log1p()
            logits = core.alpha * key[seen, h] @ query[t, h] + ages
            if core.clusters == "random":
                far = core.local_heads + h
                logits = k[far, seen] @ q[far, t] / core.head_width**0.5 + ages
            out[h, t] = logits.softmax(0) @ v[core.local_heads + h, seen]
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dense_length": 0},
        {"chunk_size": 64},
        {"key_clusters": 2},
        {"key_clusters": 3},
        {"clusters": "random"},
        {"shift_keys": True},
        {"shift_keys": True, "clusters": "random"},
        {"clusters": "frozen"},
        {"shift_keys": True, "clusters": "frozen"},
    ],
    ids=str,
)
def test_equals_the_equations(causal: bool, options: dict) -> None:
    core = QueryKeyClusteringAttention(WIDTH, HEADS, causal=causal, **{**SMALL, **options})
    core.slow_recency.data = 3 * torch.randn(core.num_clusterings)
    core.query_space.weight.data += torch.randn(core.query_space.weight.shape)  # has learnt
    q, k, v = torch.randn(3, 2, HEADS, LENGTH, WIDTH // HEADS)
    hidden = torch.randn(2, LENGTH, WIDTH)
    values, _ = core(q, k, v, hidden=hidden)
    for row in range(2):
        expected = literal(core, q[row], k[row], v[row], hidden[row])
        torch.testing.assert_close(values[row, core.local_heads :], expected)


def test_a_token_meets_by_its_query_whom_its_key_does_not_meet() -> None:
    """With W_q = P W_k, a token finds the one whose hidden state is its own, permuted by P."""
    core = QueryKeyClusteringAttention(8, 1, causal=True, num_clusters=4, dense_length=0, alpha=1e4)
    turn = torch.linalg.qr(torch.randn(8, 8))[0]
    core.key_space.weight.data = torch.eye(8)
    core.query_space.weight.data = turn
    hidden, v = torch.randn(1, 30, 8), torch.randn(1, 1, 30, 8)
    hidden[0, 29] = turn.T @ hidden[0, 3]
    values, _ = core(v, v, v, hidden=hidden)
    torch.testing.assert_close(values[0, 0, 29], v[0, 0, 3])


def test_a_key_in_two_clusters_is_met_across_a_border() -> None:
    """The query is nearest to anchor 1; its key is nearest to anchor 0, and anchor 1 comes next."""
    hidden, v, found = torch.tensor([0.0, 1.0, 0.1]).repeat(1, 30, 1), torch.randn(1, 1, 30, 3), []
    hidden[0, 7], hidden[0, 29] = torch.tensor([[0.95, 0.0, 1.0], [0.9, 1.0, 0.0]])
    for key_clusters in (1, 2):
        core = QueryKeyClusteringAttention(
            3, 1, causal=True, num_clusters=3, key_clusters=key_clusters, dense_length=0, alpha=1e3
        ).eval()
        core.anchors[0] = core.query_space.weight.data = torch.eye(3)
        core.key_space.weight.data = torch.eye(3).roll(1, 0)
        found.append(core(v, v, v, hidden=hidden)[0][0, 0, 29])
    torch.testing.assert_close(found[0], v[0, 0, 29])
    torch.testing.assert_close(found[1], v[0, 0, 7])


@pytest.mark.parametrize(("recency", "chosen"), [(-100.0, 3), (100.0, 17)])
@pytest.mark.parametrize("dense", [0, 64])
def test_recency_chooses_the_earlier_or_the_later_of_keys_that_are_alike(
    recency: float, chosen: int, dense: int
) -> None:
    options = {"num_clusters": 4, "dense_length": dense, "probes": 0, "alpha": 1e4}
    core = QueryKeyClusteringAttention(8, 1, causal=True, **options)
    turn = torch.linalg.qr(torch.randn(8, 8))[0]
    core.query_space.weight.data, core.key_space.weight.data = turn, torch.eye(8)
    core.slow_recency.data.fill_(recency)
    hidden, v = torch.randn(1, 30, 8), torch.randn(1, 1, 30, 8)
    hidden[0, 17] = hidden[0, 3]
    hidden[0, 29] = turn.T @ hidden[0, 3]
    values, _ = core(v, v, v, hidden=hidden)
    torch.testing.assert_close(values[0, 0, 29], v[0, 0, chosen])


def test_shifted_keys_find_what_followed_a_token_without_training() -> None:
    """In `a b ... a` the second a takes the value of b, whatever the clusters are."""
    options = {"num_clusters": 8, "dense_length": 0, "alpha": 1e4, "shift_keys": True}
    core = QueryKeyClusteringAttention(8, 1, causal=True, **options).eval()
    hidden, v = torch.randn(1, 30, 8), torch.randn(1, 1, 30, 8)
    hidden[0, 29] = hidden[0, 11]
    values, _ = core(v, v, v, hidden=hidden)
    torch.testing.assert_close(values[0, 0, 29], v[0, 0, 12])


@pytest.mark.parametrize("prefilled", [0, 1, 12])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clusters": "random"},
        {"shift_keys": True},
        {"shift_keys": True, "clusters": "frozen"},
    ],
    ids=str,
)
def test_decoding_knows_the_logits(prefilled: int, options: dict) -> None:
    core = QueryKeyClusteringAttention(WIDTH, HEADS, causal=True, **SMALL, **options).eval()
    core.slow_recency.data = 3 * torch.randn(core.num_clusterings)
    core.query_space.weight.data += torch.randn(core.query_space.weight.shape)  # has learnt
    q, k, v = torch.randn(3, 2, HEADS, LENGTH, WIDTH // HEADS)
    hidden = torch.randn(2, LENGTH, WIDTH)
    expected, _ = core(q, k, v, hidden=hidden)
    cache, found = core.cache(hidden), []
    if prefilled:
        first = (x[:, :, :prefilled] for x in (q, k, v))
        mixed, cache = core.prefill(*first, hidden=hidden[:, :prefilled], cache=cache)
        found.append(mixed)
    for t in range(prefilled, LENGTH):
        one = (x[:, :, t : t + 1] for x in (q, k, v))
        mixed, cache = core.step(*one, hidden=hidden[:, t : t + 1], cache=cache)
        found.append(mixed)
    torch.testing.assert_close(torch.cat(found, 2), expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shift_keys", [False, True])
def test_padding_before_a_text_changes_nothing(causal: bool, shift_keys: bool) -> None:
    core = QueryKeyClusteringAttention(
        WIDTH, HEADS, causal=causal, shift_keys=shift_keys, **SMALL
    ).eval()
    core.slow_recency.data = 3 * torch.randn(core.num_clusterings)
    q, k, v = torch.randn(3, 1, HEADS, LENGTH, WIDTH // HEADS)
    hidden, mask = torch.randn(1, LENGTH, WIDTH), torch.arange(LENGTH)[None] >= 7
    padded, _ = core(q, k, v, hidden=hidden, query_mask=mask, key_mask=mask)
    alone, _ = core(*(x[:, :, 7:] for x in (q, k, v)), hidden=hidden[:, 7:])
    torch.testing.assert_close(padded[:, :, 7:], alone)


@pytest.mark.parametrize(("dense", "learns"), [(0, False), (9, True), (64, True)])
def test_the_spaces_learn_where_nothing_is_selected(dense: int, learns: bool) -> None:
    core = QueryKeyClusteringAttention(
        WIDTH, HEADS, causal=True, **{**SMALL, "dense_length": dense}
    )
    q, k, v = torch.randn(3, 2, HEADS, LENGTH, WIDTH // HEADS)
    hidden = torch.randn(2, LENGTH, WIDTH, requires_grad=True)
    v.requires_grad_()
    core(q, k, v, hidden=hidden)[0].square().sum().backward()
    assert v.grad is not None
    assert (v.grad[:, core.local_heads :].abs().sum(-1) > 0).any()
    for weight in (core.query_space.weight, core.key_space.weight):
        assert (weight.grad is not None and bool(weight.grad.any())) == learns
    moved = (
        torch.zeros(LENGTH, dtype=torch.bool)
        if hidden.grad is None
        else hidden.grad.abs().sum((0, 2)) > 0
    )
    assert torch.equal(moved, torch.arange(LENGTH) < dense)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("probes", [LENGTH - 1, LENGTH])
def test_probes_attend_to_all_in_training(causal: bool, padded: bool, probes: int) -> None:
    """They have full attention with logits alpha z . z; here all tokens but one, or all."""
    options = {**SMALL, "local_heads": 0, "dense_length": 0, "probes": probes}
    core = QueryKeyClusteringAttention(WIDTH, HEADS, causal=causal, **options)
    q, k, v = torch.randn(3, 2, HEADS, LENGTH, WIDTH // HEADS)
    hidden, mask = torch.randn(2, LENGTH, WIDTH), torch.ones(2, LENGTH, dtype=torch.bool)
    if padded:
        mask[1, 30:] = False
    key_mask = mask if padded else None
    values, _ = core(q, k, v, hidden=hidden, key_mask=key_mask)
    query, key = core.points(hidden)
    logits = core.alpha * query @ key.transpose(2, 3)
    seen = mask[:, None, None].expand_as(logits)
    seen = seen.tril() if causal else seen
    expected = logits.masked_fill(~seen, -1e9).softmax(-1) @ v
    far = ((values - expected).abs().amax((1, 3)) > 1e-5) & mask
    assert far.any(0).sum() <= LENGTH - probes
    selected, _ = core.eval()(q, k, v, hidden=hidden, key_mask=key_mask)
    assert not torch.allclose(selected, values)


def test_probes_teach_the_spaces() -> None:
    options = {**SMALL, "dense_length": 0, "probes": 5}
    core = QueryKeyClusteringAttention(WIDTH, HEADS, causal=True, **options)
    q, k, v = torch.randn(3, 2, HEADS, LENGTH, WIDTH // HEADS)
    values, _ = core(q, k, v, hidden=torch.randn(2, LENGTH, WIDTH))
    values.square().sum().backward()
    for weight in (core.query_space.weight, core.key_space.weight):
        assert weight.grad is not None
        assert weight.grad.any()


@pytest.mark.parametrize("real", [4, 9, 20])
def test_padding_takes_no_probe_from_a_text(real: int) -> None:
    """A text has as many teachers alone as beside a longer one, all of them real tokens."""
    options = {**SMALL, "local_heads": 0, "dense_length": 0, "probes": 9}
    core = QueryKeyClusteringAttention(WIDTH, HEADS, **options)
    q, k, v = torch.randn(3, 2, HEADS, LENGTH, WIDTH // HEADS)
    hidden, mask = torch.randn(2, LENGTH, WIDTH), torch.ones(2, LENGTH, dtype=torch.bool)
    mask[0] = (torch.arange(LENGTH) - 15).abs() <= real // 2
    mask[0, 15] = real % 2 == 1
    text = mask[0].nonzero()[:, 0]

    def teaches(values: Tensor) -> Tensor:
        """Tell which tokens of the first text, (N,), give W_q a gradient."""
        weight, tokens = core.query_space.weight, values[0].square().sum((0, 2))
        grads = [torch.autograd.grad(token, weight, retain_graph=True)[0] for token in tokens]
        return torch.stack([grad.any() for grad in grads])

    alone, _ = core(*(x[:1, :, text] for x in (q, k, v)), hidden=hidden[:1, text])
    beside, _ = core(q, k, v, hidden=hidden, key_mask=mask)
    assert teaches(alone).sum() == min(real, 9)
    assert teaches(beside)[mask[0]].sum() == min(real, 9)


@pytest.mark.parametrize("causal", [False, True])
def test_a_full_text_has_the_same_probes_beside_a_padded_one(causal: bool) -> None:
    options = {**SMALL, "dense_length": 0, "probes": 9}
    core = QueryKeyClusteringAttention(WIDTH, HEADS, causal=causal, **options)
    q, k, v = torch.randn(3, 2, HEADS, LENGTH, WIDTH // HEADS)
    hidden, mask = torch.randn(2, LENGTH, WIDTH), torch.ones(2, LENGTH, dtype=torch.bool)
    mask[0, 12:] = False
    found = []
    for key_mask in (None, mask):
        torch.manual_seed(3)
        found.append(core(q, k, v, hidden=hidden, key_mask=key_mask)[0][1])
    torch.testing.assert_close(*found)


def test_random_clusters_learn_how_to_attend_and_not_to_whom() -> None:
    core = QueryKeyClusteringAttention(WIDTH, HEADS, causal=True, clusters="random", **SMALL)
    q, k, v = torch.randn(3, 2, HEADS, LENGTH, WIDTH // HEADS)
    hidden = torch.randn(2, LENGTH, WIDTH, requires_grad=True)
    q.requires_grad_()
    core(q, k, v, hidden=hidden)[0].square().sum().backward()
    trained = [name for name, weight in core.named_parameters() if weight.requires_grad]
    assert trained == ["slow_recency"]
    assert q.grad is not None
    assert q.grad[:, core.local_heads :, 9:].any()
    assert hidden.grad is None


@pytest.mark.parametrize("shift_keys", [False, True])
def test_frozen_clusters_stay_while_the_logits_learn(shift_keys: bool) -> None:
    """They begin as learnt ones, have the same gradients, and select as before after any step."""
    q, k, v = torch.randn(3, 2, HEADS, LENGTH, WIDTH // HEADS)
    hidden, found = torch.randn(2, LENGTH, WIDTH), []
    for clusters in ("learnt", "frozen"):
        torch.manual_seed(0)
        core = QueryKeyClusteringAttention(
            WIDTH, HEADS, causal=True, clusters=clusters, shift_keys=shift_keys, **SMALL
        )
        values, before = core(q, k, v, hidden=hidden)
        values.square().sum().backward()
        for weight in core.parameters():
            if weight.grad is not None:
                weight.data -= weight.grad
        moved, after = core(q, k, v, hidden=hidden)
        assert before is not None
        assert after is not None
        same = torch.equal(before.assignment, after.assignment)
        assert same == (clusters == "frozen")
        assert not torch.equal(values, moved)
        found.append((values, *(weight.grad for weight in core.parameters())))
    for learnt, frozen in zip(*found, strict=True):
        torch.testing.assert_close(learnt, frozen)


@pytest.mark.parametrize("clusters", ["learnt", "frozen", "random"])
def test_shifted_keys_have_no_map_of_their_own_at_any_width(clusters: str) -> None:
    """As in models whose heads are wider or narrower than their hidden states."""
    core = QueryKeyClusteringAttention(WIDTH, HEADS, clusters=clusters, shift_keys=True, **SMALL)
    core.read_width(2 * WIDTH)
    q, k, v = torch.randn(3, 2, HEADS, LENGTH, WIDTH // HEADS)
    hidden = torch.randn(2, LENGTH, 2 * WIDTH)
    values, _ = core(q, k, v, hidden=hidden)
    assert values.shape == v.shape
    assert torch.equal(*core.points(hidden))
    assert core.key_space is None
    assert core.query_space.weight.requires_grad == (clusters != "random")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_heads": 4}, "in 0..3, .* got 4 with num_heads = 4: no head would be left"),
        ({"alpha": 0.0}, "alpha must be"),
        ({"key_clusters": 0}, "key_clusters must be at least 1, got 0"),
        ({"num_clusters": 0}, "num_clusters must be at least 1, got 0"),
        ({"clusters": "k-means"}, "clusters must be one of learnt, frozen, random; got 'k-means'"),
        ({"dense_length": -1}, "dense_length must be at least 0, got -1"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QueryKeyClusteringAttention(WIDTH, HEADS, **options)
