"""Training without labels: a converted model learns to do what it did before."""

import copy

import pytest
import torch

from clusterformer import huggingface
from clusterformer.huggingface.dispatch import slots
from clusterformer.losses import mechanism_loss

pytest.importorskip("transformers")

SMALL = {"num_clusters": 6, "block_size": 4, "dense_length": 0}


def texts(count: int = 6) -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(3, 50, (count, 4, 24), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(24) < torch.tensor([24, 24, 17, 9])[:, None]).long()
    return [{"input_ids": ids * mask, "attention_mask": mask} for ids in tokens]


@pytest.mark.parametrize("kind", ["Bert", "Llama"])
def test_a_converted_model_comes_near_its_original(tiny, kind) -> None:
    torch.manual_seed(0)
    model = tiny(kind)
    batch = texts()[0]
    mask = batch["attention_mask"].bool()
    expected = model(**batch).last_hidden_state[mask].detach()
    small = SMALL | ({"chunk_size": 4} if kind == "Llama" else {})
    huggingface.attach(model, "NeuralClusteringAttention", **small)
    far = (model(**batch).last_hidden_state[mask] - expected).norm()
    found = huggingface.distill(model, texts(), steps=60, lr=1e-3, mechanism_lr=1e-2)
    near = (model(**batch).last_hidden_state[mask] - expected).norm()
    assert near < 0.75 * far
    assert found.before < found.after <= 1 + 1e-6


@pytest.mark.parametrize("kind", ["Bert", "Llama"])
def test_an_indexer_learns_from_its_own_loss(tiny, kind) -> None:
    model = huggingface.attach(tiny(kind), "IndexerAttention", top_k=4)
    before = {name: x.clone() for name, x in model.named_parameters() if ".index_" in name}

    def divergence() -> float:
        for slot in slots(model):
            slot.train()
        with huggingface.groupings(model) as found:
            model(**texts()[0], use_cache=False) if kind == "Llama" else model(**texts()[0])
        return float(mechanism_loss(found))

    first = divergence()
    model.eval()
    huggingface.distill(model, texts(), steps=60, lr=1e-9, mechanism_lr=1e-2)
    assert not any(module.training for module in model.modules())
    now = dict(model.named_parameters())
    assert len(before) == 3 * 5
    assert not any(torch.equal(now[name], x) for name, x in before.items())
    assert divergence() < 0.8 * first


@pytest.mark.slow
def test_autocast_around_it_changes_little(tiny) -> None:
    cosines = []
    for enabled in (False, True):
        torch.manual_seed(0)
        model = tiny("Bert")
        expected = model(**texts()[0]).last_hidden_state.detach()
        huggingface.attach(model, "NeuralClusteringAttention", **SMALL)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            huggingface.distill(model, texts(), steps=40, lr=1e-3, mechanism_lr=1e-2)
        found = model(**texts()[0]).last_hidden_state
        mask = texts()[0]["attention_mask"].bool()
        cosines.append(torch.cosine_similarity(found[mask], expected[mask], dim=-1).mean())
    assert cosines[0] > 0.8
    assert cosines[1] > cosines[0] - 0.02


def test_a_model_that_changes_its_inputs_does_not_change_the_batches() -> None:
    """CTRL of transformers multiplies `inputs_embeds` by the root of its width, in place."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.CTRLConfig(
        vocab_size=50, n_positions=64, n_embd=16, n_layer=2, n_head=2, dff=16
    )
    model = huggingface.attach(transformers.CTRLModel(config), "FullAttention")
    batch = {"inputs_embeds": torch.randn(2, 8, 16)}
    given = batch["inputs_embeds"].clone()
    found = huggingface.distill(model, [batch], steps=3, lr=1e-9)
    assert torch.equal(batch["inputs_embeds"], given)
    assert found.before == pytest.approx(1, abs=1e-5)
    assert found.after == pytest.approx(1, abs=1e-5)


def test_padding_and_what_is_frozen_stay_out_of_it(tiny) -> None:
    found = []
    for filler in (0, 7):
        torch.manual_seed(0)
        model = huggingface.attach(tiny("Bert"), "NeuralClusteringAttention", **SMALL)
        model.embeddings.requires_grad_(False)
        kept = {name: x.clone() for name, x in model.embeddings.named_parameters()}
        given = texts()
        for batch in given:
            batch["input_ids"][batch["attention_mask"] == 0] = filler
        huggingface.distill(model, given, steps=4)
        assert all(torch.equal(x, kept[name]) for name, x in model.embeddings.named_parameters())
        found.append({name: x.detach() for name, x in model.named_parameters()})
    for name, x in found[0].items():
        torch.testing.assert_close(x, found[1][name], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("seed", "dtype"), [(1, None), (0, torch.bfloat16)])
def test_a_training_goes_on_under_its_own_seed_and_precision_alone(
    tiny, tmp_path, seed: int, dtype: torch.dtype | None
) -> None:
    file = tmp_path / "training"
    own = tiny("Bert")

    def train(seed: int, dtype: torch.dtype | None) -> torch.nn.Module:
        torch.manual_seed(seed)
        model = copy.deepcopy(own)
        huggingface.attach(model, "NeuralClusteringAttention", **SMALL)
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            huggingface.distill(model, texts(), steps=4, checkpoint=file)
        return model

    expected = train(0, None).state_dict()
    with pytest.raises(ValueError, match="of a distillation with another model, texts or options"):
        train(seed, dtype)
    found = train(0, None).state_dict()
    assert all(torch.equal(x, expected[name]) for name, x in found.items())


def test_what_cannot_be_distilled_is_refused(tiny) -> None:
    model = tiny("Bert")
    with pytest.raises(ValueError, match="a mechanism attached"):
        huggingface.distill(model, texts())
    huggingface.attach(model, "NeuralClusteringAttention", **SMALL)
    with pytest.raises(ValueError, match="at least one text"):
        huggingface.distill(model, [])
    with pytest.raises(ValueError, match="steps must be at least 1"):
        huggingface.distill(model, texts(), steps=0)
    with pytest.raises(ValueError, match="need their tokenizer"):
        huggingface.distill(model, ["a text"])


def test_it_leaves_no_gradients_behind(tiny) -> None:
    model = huggingface.attach(tiny("Bert"), "NeuralClusteringAttention", **SMALL)
    huggingface.distill(model, texts(), steps=1)
    assert all(weight.grad is None for weight in model.parameters())
