"""A start near the attention that is replaced."""

from pathlib import Path

import pytest
import torch

from clusterformer import huggingface
from clusterformer.huggingface.texts import to_batches

pytest.importorskip("transformers")


def batches(count: int, groups: int = 4) -> list[dict[str, torch.Tensor]]:
    """Texts of tokens from groups, in random order."""
    found = []
    for _ in range(count):
        tokens = 3 + torch.randint(11, (4, 48)) + 11 * torch.randint(groups, (4, 48))
        mask = torch.arange(48) < torch.tensor([48, 48, 40, 31])[:, None]
        found.append({"input_ids": tokens.masked_fill(~mask, 0), "attention_mask": mask.long()})
    return found


def grouped(tiny):
    """A model whose tokens attend to those of their own group: a quarter of their features."""
    model = tiny("Bert", num_hidden_layers=1)
    words = model.embeddings.word_embeddings.weight.data
    words[3:] = torch.randn(47, 64)
    for group in range(4):
        words[3 + 11 * group : 14 + 11 * group, :16] = torch.randn(16)
    attention = model.encoder.layer[0].attention.self
    for projection in (attention.query, attention.key):
        projection.weight.data = torch.eye(64)[:16].repeat(4, 1)  # every head reads them
    return model


def test_clusters_gather_tokens_that_attend_to_each_other(tiny) -> None:
    model = huggingface.attach(grouped(tiny), "NeuralClusteringAttention", num_clusters=8)
    before = {name: x.clone() for name, x in model.named_parameters() if "clusterf" not in name}
    (found,) = huggingface.calibrate(model, batches(12), steps=20)
    assert 0.3 < found.keys_seen < 0.5  # three blocks of eight
    assert found.mass_after > found.mass_before + 0.15
    assert found.mass_after > 0.75
    assert found.length == (48 + 48 + 40 + 31) / 4
    for name, x in model.named_parameters():
        if name in before:
            assert torch.equal(x, before[name])


def test_centroids_that_follow_tokens_start_from_the_calibrated(tiny) -> None:
    model = huggingface.attach(
        grouped(tiny), "NeuralClusteringAttention", num_clusters=8, clusters="k-means",
        dense_length=0,
    )  # fmt: skip
    huggingface.calibrate(model, batches(4), steps=5)
    means = model.encoder.layer[0].attention.self.clusterformer.core.means
    calibrated = means.centroids.clone()
    model.train()
    for batch in batches(2):
        model(**batch).last_hidden_state.sum().backward()
    assert not torch.equal(means.centroids, calibrated)
    assert torch.cosine_similarity(means.centroids, calibrated, dim=-1).min() > 0.999


def test_a_decoder_that_sees_all_before_it_sees_all(tiny) -> None:
    model = tiny("Llama")
    huggingface.attach(model, "NeuralClusteringAttention", num_clusters=1, chunk_size=64)
    for layer in huggingface.calibrate(model, batches(2), steps=2):
        assert layer.keys_seen == pytest.approx(1)


@pytest.mark.slow
def test_short_texts_beside_one_longer_than_is_learnt_from_may_be_padded_on_the_left(tiny) -> None:
    model = huggingface.attach(tiny("Llama", num_hidden_layers=1), "NeuralClusteringAttention")
    length = torch.tensor([40, 30, 1100])[:, None]
    mask = torch.arange(1100) >= 1100 - length
    inputs = {"input_ids": torch.randint(3, 50, (3, 1100)), "attention_mask": mask.long()}
    (found,) = huggingface.calibrate(model, [inputs], steps=1)
    assert found.length == 35  # two texts are learnt from


def test_each_clustering_follows_its_own_heads(tiny) -> None:
    """Half of the heads look at one grouping of the tokens, half at another one across it."""
    torch.manual_seed(0)
    model = grouped(tiny)
    words = model.embeddings.word_embeddings.weight.data
    for token in range(3, 47):
        words[token, 16:32] = torch.randn(16, generator=torch.Generator().manual_seed(token % 4))
    attention = model.encoder.layer[0].attention.self
    for projection in (attention.query, attention.key):
        projection.weight.data[32:] = torch.eye(64)[16:32].repeat(2, 1)
    found = {}
    for parts in (1, 2):
        options = {"num_clusters": 8, "num_clusterings": parts}
        huggingface.attach(model, "NeuralClusteringAttention", **options)
        torch.manual_seed(1)
        (found[parts],) = huggingface.calibrate(model, batches(12), steps=20)
        huggingface.detach(model)
    assert found[2].mass_after > found[1].mass_after + 0.1
    assert found[2].mass_after > 0.75


def test_what_all_see_and_near_heads_need_no_clusters(tiny) -> None:
    """The first token takes most of the attention, and a local head looks elsewhere."""
    model = grouped(tiny)
    words, attention = (
        model.embeddings.word_embeddings.weight.data,
        model.encoder.layer[0].attention,
    )
    inputs = batches(12)
    for batch in inputs:
        batch["input_ids"][:, 0] = 49
    words[49, :16] = 8 * words[3:47, :16].mean(0)
    attention.self.query.weight.data[:16] = attention.self.key.weight.data[:16] = 0.0
    options = {"num_clusters": 8, "global_tokens": 1, "local_heads": 1, "local_window": 6}
    huggingface.attach(model, "NeuralClusteringAttention", **options)
    (found,) = huggingface.calibrate(model, inputs, steps=20)
    assert found.mass_after > found.mass_before + 0.1


@torch.no_grad()
def test_short_texts_come_out_as_before(tiny, batch) -> None:
    model = tiny("Bert")
    inputs, mask = batch([19, 7], 19)
    expected = model(**inputs).last_hidden_state[mask]
    huggingface.attach(model, "NeuralClusteringAttention", num_clusters=8, min_width=16)
    far = (model(**inputs).last_hidden_state[mask] - expected).norm()
    huggingface.calibrate(model, [inputs], alpha=0.01)
    near = (model(**inputs).last_hidden_state[mask] - expected).norm()
    assert near < far / 10


def test_what_cannot_be_calibrated_is_refused(tiny) -> None:
    model = tiny("Bert")
    with pytest.raises(ValueError, match="got a model without a mechanism"):
        huggingface.calibrate(model, batches(1))
    huggingface.attach(model, "FullAttention")
    with pytest.raises(ValueError, match=r"NeuralClusteringAttention, got FullAttention$"):
        huggingface.calibrate(model, batches(1))
    huggingface.attach(model, "NeuralClusteringAttention")
    with pytest.raises(ValueError, match="at least one text"):
        huggingface.calibrate(model, [])
    with pytest.raises(ValueError, match="need their tokenizer"):
        huggingface.calibrate(model, ["a text"])
    for texts, message in ([[None, "a text"], "text 1: got None"], [{"a": "text"}, "got a dict"]):
        with pytest.raises(ValueError, match=message):
            huggingface.calibrate(model.train(), texts, tokenizer=str)
        assert model.training


def test_layers_that_keep_their_windows_have_no_clusters_to_calibrate(tiny) -> None:
    model = tiny("Mistral", sliding_window=6)
    with pytest.warns(UserWarning, match="keeps it, so NeuralClusteringAttention is in none"):
        huggingface.attach(model, "NeuralClusteringAttention")
    with pytest.raises(ValueError, match="got LocalAttention; layers with a sliding window keep"):
        huggingface.calibrate(model, batches(1))


@pytest.fixture
def tokenizer(tmp_path: Path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    return pytest.importorskip("transformers").BertTokenizer(str(tmp_path / "vocab.txt"))


def test_texts_begin_at_the_first_position_whatever_side_a_tokenizer_pads(tiny, tokenizer) -> None:
    """Learned positions, and rotary ones under some mechanisms, would be those of other texts."""
    tokenizer.padding_side = "left"
    (batch,) = to_batches(tiny("Bert"), ["a b c d", "e"], tokenizer, 64, 2)
    assert batch["input_ids"].tolist() == [[2, 5, 6, 7, 8, 3], [2, 9, 3, 0, 0, 0]]


def test_texts_longer_than_learned_positions_reach_are_refused(tiny, tokenizer) -> None:
    model = huggingface.attach(tiny("Bert"), "NeuralClusteringAttention", num_clusters=3)
    texts = ["a b c", "a b c d " * 30]
    with pytest.raises(ValueError, match="122 tokens is longer than the 64 learned positions"):
        huggingface.calibrate(model, texts, tokenizer)
    assert huggingface.calibrate(model, texts, tokenizer, max_length=64)
