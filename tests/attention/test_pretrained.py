"""A Hugging Face encoder under our attention, without training."""

from functools import partial

import pytest
import torch

from clusterformer.attention import (
    ClusteredAttention,
    FullAttention,
    ImprovedClusteredAttention,
    MultipoleAttention,
    NeuralClusteringAttention,
    approximate,
)

transformers = pytest.importorskip("transformers")


@pytest.fixture
def model():
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=40, initializer_range=0.3,
    )  # fmt: skip
    return transformers.BertModel(config).eval()


def batch():
    mask = torch.arange(19) < torch.tensor([19, 7, 1])[:, None]
    tokens = torch.randint(1, 50, (3, 19)).masked_fill(~mask, 0)
    return {"input_ids": tokens, "attention_mask": mask.long()}, mask


@pytest.mark.parametrize(
    "core",
    [
        FullAttention,
        partial(ClusteredAttention, num_clusters=19),
        partial(ImprovedClusteredAttention, num_clusters=2, top_k=19),
        partial(MultipoleAttention, num_clusters=19),
    ],
)
@torch.no_grad()
def test_what_equals_full_attention_changes_nothing(model, core) -> None:
    inputs, mask = batch()
    expected = model(**inputs).last_hidden_state
    assert approximate(model, core) is model
    found = model(**inputs).last_hidden_state
    torch.testing.assert_close(found[mask], expected[mask])


@torch.no_grad()
def test_it_can_be_undone_and_repeated(model) -> None:
    inputs, mask = batch()
    own = model.config._attn_implementation
    expected = model(**inputs).last_hidden_state[mask]
    for clusters in (1, 2):
        approximate(model, partial(ClusteredAttention, num_clusters=clusters))
        found = model(**inputs).last_hidden_state[mask]
        assert not torch.allclose(found, expected, atol=1e-3)
        model.set_attn_implementation(own)
        torch.testing.assert_close(model(**inputs).last_hidden_state[mask], expected)


@torch.no_grad()
def test_padding_changes_nothing(model) -> None:
    inputs, _ = batch()
    approximate(model, partial(ImprovedClusteredAttention, num_clusters=3, top_k=2))
    found = model(**inputs).last_hidden_state
    alone = model(input_ids=inputs["input_ids"][1:2, :7]).last_hidden_state
    torch.testing.assert_close(found[1:2, :7], alone)


@pytest.mark.parametrize(
    ("core", "message"),
    [
        (NeuralClusteringAttention, "has weights of its own"),
        (partial(FullAttention, causal=True), "an encoder needs causal=False"),
    ],
)
def test_what_cannot_replace_an_encoders_attention_is_refused(model, core, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        approximate(model, core)
