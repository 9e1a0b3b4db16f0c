"""The encoder and its parts: masks, norms, memory, limits."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from default_dtype import default_dtype

from clusterformer.attention import (
    FullAttention,
    LocalAttention,
    NeuralClusteringAttention,
    QueryKeyClusteringAttention,
)
from clusterformer.models.config import TransformerConfig
from clusterformer.models.decoder import Decoder
from clusterformer.models.embeddings import TokenEmbedding, sinusoidal_positions
from clusterformer.models.pooling import pool
from clusterformer.models.transformer import Encoder


def neural(d_model: int, num_heads: int) -> NeuralClusteringAttention:
    return NeuralClusteringAttention(d_model, num_heads, num_clusters=4)


# these draw numbers in their forward pass
exploring = partial(NeuralClusteringAttention, num_clusters=4, exploration=1.0)
probing = partial(QueryKeyClusteringAttention, dense_length=4, probes=6)
sampling = partial(QueryKeyClusteringAttention, dense_length=4, probes=0, sampled_keys=5)


def small(**options) -> TransformerConfig:
    return TransformerConfig(FullAttention, **{"d_model": 8, **options})


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("attention", [FullAttention, neural])
def test_padding_changes_nothing_through_the_stack(norm: str, attention) -> None:
    encoder = Encoder(TransformerConfig(attention, d_model=32, d_ff=64, norm=norm)).eval()
    text = torch.randn(11, 32)
    padded = torch.full((2, 19, 32), 7.0)
    padded[0, :11], padded[1] = text, torch.randn(19, 32)
    mask = torch.arange(19) < torch.tensor([11, 19])[:, None]
    hidden = encoder(padded, mask).hidden
    torch.testing.assert_close(hidden[0, :11], encoder(text[None]).hidden[0])


def test_centroids_are_learned_below_and_handed_up() -> None:
    encoder = Encoder(TransformerConfig(neural, d_model=32, num_layers=3))
    owners = [name for name, _ in encoder.named_parameters() if name.endswith("centroids")]
    assert owners == ["layers.0.attention.core.centroids"]


@pytest.mark.parametrize("attention", [FullAttention, neural, exploring, probing, sampling])
def test_recomputing_changes_no_gradient(attention) -> None:
    torch.manual_seed(1)
    config = TransformerConfig(attention, d_model=32, d_ff=64, dropout=0.0)
    plain = Encoder(config)
    torch.manual_seed(1)
    saving = Encoder(replace(config, recompute=True))
    x = torch.randn(2, 19, 32)
    weights = torch.randn(2, 19, 32)  # the sum of the squares behind a norm is constant
    for encoder in (plain, saving):
        torch.manual_seed(2)
        encoded = encoder(x)
        loss = (encoded.hidden * weights).sum()
        if encoded.groupings[0] is not None and encoded.groupings[0].centroids is not None:
            loss = loss + sum(g.centroids.sum() for g in encoded.groupings)
        loss.backward()
    for (name, p), q in zip(plain.named_parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=name)


def test_sinusoids_are_those_of_the_paper() -> None:
    found = sinusoidal_positions(torch.tensor([0, 3]), 6)
    assert found[0].tolist() == [0, 0, 0, 1, 1, 1]
    rates = torch.tensor([1, 1e4 ** (-1 / 3), 1e4 ** (-2 / 3)])
    torch.testing.assert_close(found[1], torch.cat([(3 * rates).sin(), (3 * rates).cos()]))


def test_sinusoids_tell_far_positions_apart_in_half_precision() -> None:
    expected = sinusoidal_positions(torch.arange(1000), 64)
    with default_dtype(torch.bfloat16):
        assert torch.equal(sinusoidal_positions(torch.arange(1000), 64), expected)


def test_embeddings_at_a_later_position_are_those_of_the_whole_text() -> None:
    for positions in ("sinusoidal", "learned", "none"):
        embedding = TokenEmbedding(small(positions=positions), 20).eval()
        tokens = torch.randint(1, 20, (2, 9))
        torch.testing.assert_close(embedding(tokens[:, 4:], start=4), embedding(tokens)[:, 4:])


def test_a_text_beyond_learned_positions_is_refused() -> None:
    embedding = TokenEmbedding(small(positions="learned"), 20, max_length=4)
    with pytest.raises(ValueError, match="5 tokens is longer than the 4 learned positions"):
        embedding(torch.ones(1, 5, dtype=torch.long))


def test_pretrained_vectors_keep_their_directions_and_are_projected_if_narrower() -> None:
    vectors = torch.randn(20, 8)
    same = TokenEmbedding(small(), 20, pretrained=vectors)
    cosine = torch.cosine_similarity(same.tokens.weight[1:], vectors[1:])
    torch.testing.assert_close(cosine, torch.ones(19))
    assert same.tokens.weight[0].eq(0).all()
    wide = TokenEmbedding(small(d_model=16), 20, pretrained=vectors)
    assert wide(torch.ones(1, 3).long()).shape == (1, 3, 16)


@pytest.mark.parametrize("how", ["mean", "max", "first"])
def test_pooling_reads_real_tokens_only(how: str) -> None:
    hidden = torch.randn(2, 5, 3)
    mask = torch.tensor([[True, True, False, False, False], [False] * 5])
    hidden[0, 2:] = float("nan") if how != "first" else 9.0
    single = pool(hidden[:1, :2], mask[:1, :2], how)
    torch.testing.assert_close(pool(hidden, mask, how)[:1], single)
    if how != "first":
        assert pool(hidden, mask, how)[1].eq(0).all()


def test_unknown_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="pooling must be"):
        pool(torch.zeros(1, 1, 1), torch.ones(1, 1, dtype=torch.bool), "sum")
    with pytest.raises(ValueError, match="norm must be"):
        TransformerConfig(FullAttention, norm="rms")


def window(d_model: int, num_heads: int, causal: bool = False) -> LocalAttention:
    return LocalAttention(d_model, num_heads, causal=causal, window=3)


@pytest.mark.parametrize(("layers", "inner"), [(1, 0), (2, 1), (3, 1), (7, 3)])
def test_only_the_central_layer_differs_from_the_outer_ones(layers: int, inner: int) -> None:
    config = TransformerConfig(FullAttention, d_model=32, num_layers=layers, outer_attention=window)
    for stack in (Encoder(config), Decoder(config)):
        kinds = [type(layer.attention.core) for layer in stack.layers]
        assert [index for index, kind in enumerate(kinds) if kind is FullAttention] == [inner]
        assert set(kinds) <= {FullAttention, LocalAttention}


def test_centroids_go_up_to_the_same_mechanism_only() -> None:
    config = TransformerConfig(neural, d_model=32, num_layers=3, outer_attention=window)
    encoder = Encoder(config)
    owners = [name for name, _ in encoder.named_parameters() if name.endswith("centroids")]
    assert owners == ["layers.1.attention.core.centroids"]
    assert [g is None for g in encoder(torch.randn(2, 9, 32)).groupings] == [True, False, True]


@pytest.mark.parametrize(
    ("option", "inner", "outer", "owners"),
    [
        ("num_clusters", 4, 3, [0, 2, 3]),
        ("num_clusterings", 1, 2, [0, 2, 3]),
        ("cluster_width", 6, 5, [0, 2, 3]),
        ("clusters", "learnt", "random", [0, 2, 3]),
        ("dense_length", 4, 20, [0, 2]),  # the outer layers have centroids for long texts only
        ("look_back", 1, 2, [0]),
    ],
)
def test_centroids_go_up_where_they_fit(option, inner, outer, owners: list[int]) -> None:
    shared = {"num_clusters": 4, "block_size": 2, "dense_length": 4}
    attention, outside = (
        partial(NeuralClusteringAttention, **{**shared, option: value}) for value in (inner, outer)
    )
    config = TransformerConfig(attention, d_model=32, num_layers=4, outer_attention=outside)
    encoder = Encoder(config)
    cores = [layer.attention.core for layer in encoder.layers]
    assert [i for i, core in enumerate(cores) if core.own_centroids() is not None] == owners
    encoder(torch.randn(2, 10, 32))
    for core, found in zip(cores, encoder(torch.randn(2, 30, 32)).groupings, strict=True):
        assert found.centroids.shape[1] == core.num_clusters


@pytest.mark.parametrize("attention", [FullAttention, neural])
def test_rotary_positions_are_relative(attention) -> None:
    config = TransformerConfig(attention, d_model=32, d_ff=64, positions="rotary", dropout=0.0)
    encoder = Encoder(config).eval()
    x = torch.randn(1, 11, 32)
    hidden = encoder(x).hidden
    shifted = torch.cat([torch.randn(1, 6, 32), x], 1)
    mask = torch.arange(17)[None] >= 6
    torch.testing.assert_close(encoder(shifted, mask).hidden[:, 6:], hidden, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(encoder(x.flip(1)).hidden.flip(1), hidden, atol=1e-2)


@pytest.mark.parametrize("attention", [FullAttention, NeuralClusteringAttention])
def test_at_one_seed_every_mechanism_starts_from_the_same_weights(attention) -> None:
    drawn = []
    for kind in (attention, LocalAttention):
        torch.manual_seed(3)
        config = TransformerConfig(kind, d_model=8, num_heads=2, d_ff=8)
        stack = Decoder(config, cross=True)
        drawn.append({name: x for name, x in stack.state_dict().items() if ".core." not in name})
    ours, theirs = drawn
    assert all(torch.equal(ours[name], theirs[name]) for name in ours.keys() & theirs.keys())
    assert len(ours.keys() & theirs.keys()) > 20
