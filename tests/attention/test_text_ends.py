"""Tokens that all see, and heads that see near tokens, where nothing is causal."""

import pytest
import torch
from torch import Tensor

from clusterformer.attention import FullAttention, MultiHeadAttention, NeuralClusteringAttention
from clusterformer.kernels import dense_attention
from clusterformer.kernels.dispatch import VARIABLE


def defined(layer: MultiHeadAttention, x: Tensor, cluster: list[int]) -> Tensor:
    """Attention of one text without padding, by the definition of who sees whom."""
    core, length = layer.core, len(x)
    order = sorted(range(length), key=lambda t: (cluster[t], t))
    rank = {token: r for r, token in enumerate(order)}
    blocks = -(-length // core.block_size)
    ends = {*range(core.global_tokens), *range(length - core.global_tokens, length)}
    z = torch.nn.functional.normalize(core.space(x), dim=-1)
    heads = (core.num_heads, core.head_width)
    q, k, v = (p(x).unflatten(-1, heads) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    out = torch.zeros_like(q)
    for t in range(length):
        for h in range(core.num_heads):
            local = h < core.local_heads
            seen = []
            for s in range(length):
                if local:
                    near = abs(t // core.local_window - s // core.local_window) <= 1
                else:
                    apart = (rank[t] // core.block_size - rank[s] // core.block_size) % blocks
                    near = apart <= core.look_back or -apart % blocks <= core.look_ahead
                if near or t in ends or s in ends:
                    seen.append(s)
            logits = k[seen, h] @ q[t, h] / core.head_width**0.5
            if core.coupling and not local:
                logits = logits + core.log_alpha.exp() * (z[seen] @ z[t])
            out[t, h] = logits.softmax(0) @ v[seen, h]
    return layer.out_proj(out.flatten(1))


@pytest.mark.parametrize(
    "options",
    [
        {"global_tokens": 1},
        {"global_tokens": 2, "coupling": False},
        {"local_heads": 2},
        {"look_back": 2, "look_ahead": 0},
        {"look_back": 0},
        {"global_tokens": 1, "local_heads": 1},
        {"global_tokens": 1, "local_heads": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("padding", ["right", "left", "holes"])
def test_it_is_its_definition(options: dict[str, int], padding: str) -> None:
    core = NeuralClusteringAttention(
        32, 4, num_clusters=5, block_size=4, local_window=3, dense_length=0, **options
    )
    layer = MultiHeadAttention(core)
    x, position = torch.randn(3, 31, 32), torch.arange(31)
    lengths = torch.tensor([31, 17, 2])[:, None]
    mask = {
        "right": position < lengths,
        "left": position >= 31 - lengths,
        "holes": torch.rand(3, 31) < 0.6,
    }[padding]
    out = layer(x.masked_fill(~mask[..., None], 1e4), mask)
    seen = core.keys_seen(out.grouping, mask)
    for row in range(3):
        real = mask[row]
        expected = defined(layer, x[row][real], out.grouping.assignment[row][real].tolist())
        torch.testing.assert_close(out.values[row][real], expected)
    if core.global_tokens:
        first = mask.long().argmax(1)
        assert seen[torch.arange(3), first].tolist() == [1, 1, 1]


def test_gradients_are_those_of_full_attention_where_all_is_seen() -> None:
    core = NeuralClusteringAttention(
        32, 4, block_size=8, dense_length=0, coupling=False, global_tokens=1
    )
    layer, full = MultiHeadAttention(core), MultiHeadAttention(FullAttention(32, 4))
    full.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.startswith("core.")})
    x = torch.randn(2, 23, 32, requires_grad=True)
    mask = torch.arange(23) < torch.tensor([23, 9])[:, None]
    ours, theirs = layer(x, mask).values[mask], full(x, mask).values[mask]
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    (gradient,) = torch.autograd.grad((ours * weight).sum(), x)
    (expected,) = torch.autograd.grad((theirs * weight).sum(), x)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("way", ["blocks", "reference", "triton"])
@pytest.mark.parametrize("coupling", [True, False], ids=["coupled", "uncoupled"])
def test_every_kernel_serves_them(
    way: str, coupling: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients are those of one product under a mask, which short texts take.

    The two tokens at each end of a text of three meet in the middle, and that one counts once.
    """
    triton = way == "triton"
    if triton:
        pytest.importorskip("triton")
    heads, length = (2, 13) if triton else (4, 47)  # interpreted kernels are slow
    core = NeuralClusteringAttention(
        8 * heads, heads, num_clusters=3, block_size=4, local_heads=1, local_window=3,
        dense_length=0, global_tokens=2, coupling=coupling,
    )  # fmt: skip
    layer = MultiHeadAttention(core)
    mask = torch.arange(length) < torch.tensor([length, 3, 1])[:, None]
    x = torch.randn(3, length, 8 * heads, requires_grad=True)
    weights = [x, *(p for p in layer.parameters() if p.requires_grad)]

    def step() -> list[Tensor]:
        values = layer(x, mask).values[mask]
        found = torch.autograd.grad(
            values.square().sum(), weights, allow_unused=True, materialize_grads=True
        )
        return [values, *found]

    expected = step()
    if way == "blocks":
        monkeypatch.setattr(dense_attention, "DENSE_LENGTH", 0)
    else:
        monkeypatch.setenv(VARIABLE, way)
    for one, other in zip(step(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_autocast_does_not_round_logits() -> None:
    """They are computed in float32 from float32 queries, keys and points, coupling included."""
    core = NeuralClusteringAttention(
        32, 4, num_clusters=3, block_size=4, local_heads=1, dense_length=0, global_tokens=1
    )
    hidden, (q, k, v) = torch.randn(2, 300, 32), torch.randn(3, 2, 4, 300, 8)
    expected, _ = core(q, k, v, hidden=hidden)
    with torch.autocast("cpu", torch.bfloat16):
        values, _ = core(q, k, v, hidden=hidden)
    assert torch.equal(values, expected)


def test_global_tokens_are_refused_where_later_tokens_may_not_be_seen() -> None:
    with pytest.raises(ValueError, match="global_tokens must be 0 with causal=True, as decoders"):
        NeuralClusteringAttention(32, 4, causal=True, global_tokens=1)
