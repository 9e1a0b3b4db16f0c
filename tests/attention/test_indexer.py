"""The lightning indexer against a literal version of its published choice, and its own loss."""

import pytest
import torch
from default_dtype import default_dtype
from torch import Tensor

from clusterformer.attention import FullAttention, IndexerAttention, MultiHeadAttention
from clusterformer.kernels import index_scores as index_scores_kernel
from clusterformer.kernels.index_scores import index_scores


def turned(x: Tensor, position: int, base: float) -> Tensor:
    """Index vectors (..., F), the first half of whose width is rotated by their position."""
    half = x.shape[-1] // 4
    angles = position * base ** -(torch.arange(half) / half)
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([a * cosine - b * sine, a * sine + b * cosine, rest], -1)


def literal(core: IndexerAttention, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    """Attention (H, N, D) to the keys of best index score, token by token (eq. 1-2)."""
    keys = core.index_norm(core.index_keys(x))
    if base := core.rotary_base:
        keys = torch.stack([turned(key, s, base) for s, key in enumerate(keys)])
    scale = (core.index_heads * keys.shape[1]) ** -0.5
    mixed = torch.zeros_like(q)
    for t in range(len(x)):
        queries = core.index_queries(x[t]).view(core.index_heads, -1)
        if base:
            queries = turned(queries, t, base)
        weights = core.index_weights(x[t]) * scale
        seen = range(t + 1 if core.causal else len(x))
        scores = [float(sum(weights * (queries @ keys[s]).relu())) for s in seen]
        best = sorted(seen, key=lambda s: (scores[s], s), reverse=True)[: core.top_k]
        for head in range(len(q)):
            logits = k[head, best] @ q[head, t] / q.shape[-1] ** 0.5
            mixed[head, t] = logits.softmax(0) @ v[head, best]
    return mixed


@pytest.mark.parametrize("base", [None, 100.0])
@pytest.mark.parametrize("top_k", [1, 5])
@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_published_choice(causal: bool, top_k: int, base: float | None) -> None:
    core = IndexerAttention(16, 2, causal=causal, top_k=top_k, index_heads=3, index_width=8).eval()
    core.rotary_base = base
    x = torch.randn(2, 17, 16)
    q, k, v = torch.randn(3, 2, 2, 17, 8).unbind()
    with torch.no_grad():
        found, _ = core(q, k, v, hidden=x)
        for row in range(2):
            expected = literal(core, q[row], k[row], v[row], x[row])
            torch.testing.assert_close(found[row], expected)


@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_enough_keys_are_full_attention(causal: bool, block_size: int) -> None:
    q, k, v = torch.randn(3, 2, 4, 29, 8).unbind()
    hidden, mask = torch.randn(2, 29, 32), torch.rand(2, 29) < 0.8
    core = IndexerAttention(32, 4, causal=causal, top_k=29, block_size=block_size)
    found, _ = core(q, k, v, hidden=hidden, key_mask=mask)
    full, _ = FullAttention(32, 4, causal=causal)(q, k, v, hidden=hidden, key_mask=mask)
    found, full = (x.transpose(1, 2)[mask] for x in (found, full))
    torch.testing.assert_close(found, full)


@pytest.mark.parametrize("base", [None, 100.0])
@pytest.mark.parametrize("block_size", [1, 3])
def test_decoding_chooses_as_a_whole_pass_does(block_size: int, base: float | None) -> None:
    core = IndexerAttention(32, 4, causal=True, top_k=3, block_size=block_size)
    layer, x = MultiHeadAttention(core, rotary_base=base).eval(), torch.randn(2, 25, 32)
    with torch.no_grad():
        values, cache = layer.prefill(x[:, :7], layer.cache(x))
        found = [values]
        for token in x[:, 7:].split(1, dim=1):
            values, cache = layer.step(token, cache)
            found.append(values)
        torch.testing.assert_close(torch.cat(found, 1), layer(x).values)


@pytest.mark.parametrize(("top_k", "block_size"), [(3, 1), (2, 4), (1, 4)])
@pytest.mark.parametrize("target", ["chosen", "all"])
def test_padding_adds_nothing_to_the_loss(target: str, top_k: int, block_size: int) -> None:
    core = IndexerAttention(16, 2, causal=True, top_k=top_k, target=target, block_size=block_size)
    x, (q, k, v) = torch.randn(1, 21, 16), torch.randn(3, 1, 2, 21, 8).unbind()
    mask = torch.rand(1, 21) < 0.6
    _, padded = core(q, k, v, hidden=x, key_mask=mask)
    real = mask[0].nonzero()[:, 0]
    _, alone = core(*(y[:, :, real] for y in (q, k, v)), hidden=x[:, real])
    torch.testing.assert_close(padded.loss, alone.loss)


@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("target", ["chosen", "all"])
def test_the_loss_is_the_divergence_from_attention(target: str, block_size: int) -> None:
    core = IndexerAttention(
        16, 2, causal=True, top_k=3, target=target, block_size=block_size, index_width=4
    )
    x, (q, k, v) = torch.randn(1, 12, 16), torch.randn(3, 1, 2, 12, 8).unbind()
    _, grouping = core(q, k, v, hidden=x)
    (queries, weights, keys), total = core._index(x), 0.0
    torch.testing.assert_close(weights, core.index_weights(x) * (core.index_heads * 4) ** -0.5)
    position, mask = core._choose((queries, weights, keys), None)
    for t in range(12):
        at = list(range(t + 1)) if target == "all" else position[0, t][mask[0, t]].tolist()
        attention = (k[0][:, at] @ q[0, :, t, :, None] / 8**0.5)[..., 0].softmax(-1)
        p = attention.sum(0) / attention.sum()
        score = torch.stack(
            [(weights[0, t] * (queries[0, t] @ keys[0, s]).relu()).sum() for s in at]
        )
        if block_size > 1 and target == "chosen":
            block = [s // block_size for s in at]
            names = sorted(set(block))
            p = torch.stack([sum(p[i] for i in range(len(at)) if block[i] == b) for b in names])
            score = torch.stack(
                [max(score[i] for i in range(len(at)) if block[i] == b) for b in names]
            )
        total += float((p * (p.log() - score.log_softmax(0))).sum().detach())
    assert float(grouping.loss[0].detach()) == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block_size", [1, 4])
def test_long_texts_are_read_in_pieces_as_at_once(
    block_size: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = IndexerAttention(16, 2, causal=causal, top_k=3, block_size=block_size)
    x, (q, k, v) = torch.randn(2, 23, 16), torch.randn(3, 2, 2, 23, 8).unbind()
    mask, found = torch.arange(23) < torch.tensor([[23], [14]]), []
    for piece in (index_scores_kernel.PIECE, 2 * 4 * 23 * 5):  # five queries at a time
        monkeypatch.setattr(index_scores_kernel, "PIECE", piece)
        values, grouping = core(q, k, v, hidden=x, key_mask=mask)
        found.append((values.transpose(1, 2)[mask], grouping.loss, grouping.counts[mask]))
    for whole, pieces in zip(*found, strict=True):
        torch.testing.assert_close(pieces, whole)


def test_the_loss_is_the_same_in_half_precision() -> None:
    core = IndexerAttention(16, 2, causal=True, top_k=3)
    x, (q, k, v) = torch.randn(1, 12, 16), torch.randn(3, 1, 2, 12, 8).unbind()
    expected = core(q, k, v, hidden=x)[1].loss
    with default_dtype(torch.bfloat16):
        assert torch.equal(core(q, k, v, hidden=x)[1].loss, expected)


def test_the_indexer_learns_from_its_own_loss_alone() -> None:
    layer = MultiHeadAttention(IndexerAttention(32, 4, causal=True, top_k=4))
    x = torch.randn(2, 19, 32, requires_grad=True)
    out = layer(x, torch.rand(2, 19) < 0.8)
    indexer = [p for n, p in layer.named_parameters() if "index_" in n]
    others = [x, *(p for n, p in layer.named_parameters() if "index_" not in n)]
    found = torch.autograd.grad(out.grouping.loss.sum(), indexer, retain_graph=True)
    assert all(gradient.abs().sum() > 0 for gradient in found)
    none = torch.autograd.grad(
        out.grouping.loss.sum(), others, allow_unused=True, retain_graph=True
    )
    assert all(gradient is None for gradient in none)
    values = torch.autograd.grad(out.values.sum(), indexer, allow_unused=True)
    assert all(gradient is None for gradient in values)
    assert layer.eval()(x).grouping.loss is None


def test_gradient_descent_on_the_loss_finds_the_keys_that_attention_wants() -> None:
    """The share of full attention's mass on the chosen keys rises."""
    torch.manual_seed(1)
    layer = MultiHeadAttention(IndexerAttention(32, 4, top_k=6, target="all"))
    layer.q_proj.weight.data.mul_(3)
    x = torch.randn(4, 48, 32)
    optimizer = torch.optim.Adam(layer.core.parameters(), lr=0.01)

    def held() -> float:
        q, k = layer._split(layer.q_proj(x)), layer._split(layer.k_proj(x))
        full = (q @ k.transpose(2, 3) / 8**0.5).softmax(-1).mean(1)
        position, _ = layer.core._choose(layer.core._index(x), None)
        return float(full.gather(2, position).sum(-1).mean().detach())

    before = held()
    for _ in range(60):
        optimizer.zero_grad()
        layer(x).grouping.loss.mean().backward()
        optimizer.step()
    assert held() > before + 0.1


def test_positions_reach_the_index_where_the_layer_has_them() -> None:
    """Without them the order of earlier tokens tells nothing."""
    x = torch.randn(1, 20, 32)
    shuffled = torch.cat([x[:, torch.randperm(19)], x[:, 19:]], 1)
    for base in (None, 100.0):
        layer = MultiHeadAttention(IndexerAttention(32, 4, causal=True), rotary_base=base)
        scores = [
            index_scores(*layer.core._index(each))[0, 19].sort().values for each in (x, shuffled)
        ]
        assert torch.allclose(*scores) == (base is None)
    mask = torch.arange(20) != 5  # positions are those among the real tokens
    layer = MultiHeadAttention(IndexerAttention(32, 4, causal=True, top_k=3), rotary_base=100.0)
    padded = layer(x, mask[None]).values[:, mask]
    torch.testing.assert_close(padded, layer(x[:, mask]).values)


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(ValueError, match="target must be one of chosen, all; got 'some'"):
        IndexerAttention(8, 2, target="some")
