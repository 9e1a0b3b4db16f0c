"""What is saved comes back with its mechanism."""

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import clusterformer
from clusterformer import huggingface
from clusterformer.attention import FullAttention, neural_clustering
from clusterformer.data.pretrained import open_pretrained
from clusterformer.huggingface.dispatch import slots

transformers = pytest.importorskip("transformers")

FORMS = [
    ("Bert", "NeuralClusteringAttention", {"num_clusters": 3}),
    ("Roberta", "ClusteredAttention", {"num_clusters": 3}),
    ("DistilBert", "RoutingAttention", {"num_clusters": 3}),
    ("ModernBert", "NeuralClusteringAttention", {"num_clusters": 3}),
    ("Llama", "NeuralClusteringAttention", {"num_clusters": 3, "chunk_size": 4}),
    ("Qwen3", "MultipoleAttention", {"num_clusters": 3, "block_size": 4}),
    pytest.param("Mistral", "ReformerAttention", {}, marks=pytest.mark.slow),
    ("Gemma", "IndexerAttention", {"top_k": 3}),
    ("Gemma", "NeuralClusteringAttention", {"num_clusters": 3, "chunk_size": 4}),
]


@pytest.mark.parametrize(("family", "name", "options"), FORMS)
@torch.no_grad()
def test_save_and_load_give_the_same_bits(tiny, tmp_path, family, name, options) -> None:
    model = huggingface.attach(tiny(family), name, **options)
    tokens = torch.randint(3, 50, (2, 19))
    expected = model(tokens).last_hidden_state
    model.save_pretrained(tmp_path)
    for again in (
        huggingface.load(tmp_path),
        transformers.AutoModel.from_pretrained(tmp_path, trust_remote_code=True),
    ):
        assert type(again).__name__ == type(model).__name__
        assert not again.training
        assert torch.equal(again(tokens).last_hidden_state, expected)
        again.save_pretrained(tmp_path / "again")
        assert torch.equal(huggingface.load(tmp_path / "again")(tokens).last_hidden_state, expected)


def test_centroids_keep_their_bits_in_half_precision(tiny, tmp_path) -> None:
    model = huggingface.attach(tiny("Bert"), "RoutingAttention", num_clusters=3)
    model.save_pretrained(tmp_path)
    half = huggingface.load(tmp_path, dtype=torch.bfloat16)
    for found, expected in zip(slots(half), slots(model), strict=True):
        assert torch.equal(found.core.means.centroids, expected.core.means.centroids)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("NeuralClusteringAttention", {"clusters": "random", "num_clusters": 3}),
        ("NeuralClusteringAttention", {"clusters": "k-means", "num_clusters": 3}),
        ("QueryKeyClusteringAttention", {"clusters": "random", "num_clusters": 3}),
    ],
)
def test_what_no_training_moves_stays_so_after_loading(tiny, tmp_path, name, options) -> None:
    model = huggingface.attach(tiny("Qwen3"), name, **options)  # of wider heads
    model.save_pretrained(tmp_path)
    again = huggingface.load(tmp_path)
    made = huggingface.from_config(model.config)
    for other in (again, made):
        for found, expected in zip(other.parameters(), model.parameters(), strict=True):
            assert found.requires_grad == expected.requires_grad
    for x in (model, again):
        assert not [p for p in x.parameters() if not p.requires_grad]
    for key, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], value)


@torch.no_grad()
def test_another_mechanism_takes_the_place_of_one_that_was_left_out(tiny, tmp_path) -> None:
    model = huggingface.attach(tiny("Bert"), "NeuralClusteringAttention", num_clusters=3)
    model.save_pretrained(tmp_path / "clusters")
    tokens = torch.randint(3, 50, (2, 19))
    plain = transformers.AutoModel.from_pretrained(
        tmp_path / "clusters", attn_implementation="sdpa"
    ).eval()
    own = plain(tokens).last_hidden_state
    huggingface.attach(plain, "LocalAttention", window=3)
    expected = plain(tokens).last_hidden_state
    plain.save_pretrained(tmp_path / "windows")
    again = huggingface.load(tmp_path / "windows")
    assert torch.equal(again(tokens).last_hidden_state, expected)
    assert torch.equal(huggingface.detach(plain)(tokens).last_hidden_state, own)
    assert not hasattr(plain.config, "clusterformer")


@torch.no_grad()
def test_a_head_comes_and_goes(tiny, tmp_path) -> None:
    model = tiny("Bert", "ForSequenceClassification", num_labels=3)
    huggingface.attach(model, "NeuralClusteringAttention", num_clusters=3)
    tokens = torch.randint(3, 50, (2, 19))
    model.save_pretrained(tmp_path / "whole")
    again = huggingface.load(tmp_path / "whole")
    assert torch.equal(again(tokens).logits, model(tokens).logits)
    expected = model.bert(tokens).last_hidden_state
    body = huggingface.load(tmp_path / "whole", "AutoModel")
    assert torch.equal(body(tokens).last_hidden_state, expected)
    model.bert.save_pretrained(tmp_path / "body")
    body = huggingface.load(tmp_path / "body", transformers.BertModel)
    assert torch.equal(body(tokens).last_hidden_state, expected)
    assert huggingface.load(tmp_path / "body", dtype=torch.bfloat16).dtype == torch.bfloat16


def test_plain_loading_is_refused_with_the_way_to_load(tiny, tmp_path) -> None:
    huggingface.attach(tiny("Bert"), "FullAttention").save_pretrained(tmp_path)
    for kind in (transformers.AutoModel, transformers.BertModel):
        with pytest.raises(ValueError, match=r"clusterformer\.huggingface\.load"):
            kind.from_pretrained(tmp_path)


def test_another_attention_beside_the_saved_mechanism_is_refused(tiny, tmp_path) -> None:
    huggingface.attach(tiny("Bert"), "LocalAttention", window=3).save_pretrained(tmp_path)
    own = {"attn_implementation": "sdpa"}
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    for load in (
        lambda: huggingface.load(tmp_path, **own),
        lambda: huggingface.load(tmp_path, config=config, **own),
        lambda: transformers.AutoModel.from_pretrained(tmp_path, trust_remote_code=True, **own),
    ):
        with pytest.raises(ValueError, match="LocalAttention for its attention; leave out") as said:
            load()
        assert "\n" not in str(said.value)
    assert huggingface.is_attached(huggingface.load(tmp_path))


@pytest.mark.slow
def test_a_fresh_process_loads_the_folder_through_its_code(tiny, tmp_path) -> None:
    model = huggingface.attach(tiny("Bert"), "NeuralClusteringAttention", num_clusters=3)
    model.save_pretrained(tmp_path)
    program = (
        "import sys, torch; from transformers import AutoModel; "
        "model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True); "
        "print(model(torch.arange(3, 20)[None]).last_hidden_state.double().sum().item())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    with torch.no_grad():
        expected = model(torch.arange(3, 20)[None]).last_hidden_state.double().sum().item()
    assert float(done.stdout) == pytest.approx(expected)


@torch.no_grad()
def test_a_configuration_makes_random_weights_with_the_mechanism(tiny, tmp_path) -> None:
    model = tiny("Bert", "ForSequenceClassification")
    huggingface.attach(model, "LocalAttention", window=3).save_pretrained(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    own = {"trust_remote_code": True}
    tokens = torch.randint(3, 50, (2, 19))
    for make in (
        lambda **options: transformers.AutoModel.from_config(config, **own, **options),
        lambda **options: huggingface.from_config(config, "AutoModel", **options),
    ):
        made = make(dtype=torch.bfloat16).eval()
        assert type(made).__name__ == "BertModel"
        assert huggingface.is_attached(made)
        assert made.dtype == torch.bfloat16
        huggingface.detach(made)(tokens)
        with pytest.raises(ValueError, match="LocalAttention for its attention; leave out"):
            make(attn_implementation="sdpa")
    made = huggingface.from_config(config).eval()
    made.load_state_dict(model.state_dict())
    assert torch.equal(made(tokens).logits, model(tokens).logits)
    with pytest.raises(ValueError, match="names no mechanism"):
        huggingface.from_config(tiny("Bert").config)


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"num_clusters": 3}, {"block_size": 4}])
def test_a_folder_keeps_its_meaning_when_defaults_change(tiny, tmp_path, monkeypatch, options):
    model = huggingface.attach(tiny("Bert"), "NeuralClusteringAttention", **options)
    tokens = torch.randint(3, 50, (2, 19))
    expected = model(tokens).last_hidden_state
    model.save_pretrained(tmp_path)
    for name, value in (("NUM_CLUSTERS", 5), ("BLOCK_SIZE", 2), ("DENSE_LENGTH", 0)):
        monkeypatch.setattr(neural_clustering, name, value)
    changed = huggingface.attach(tiny("Bert"), "NeuralClusteringAttention")
    assert slots(changed)[0].core.block_size == 2
    again = huggingface.load(tmp_path)
    assert torch.equal(again(tokens).last_hidden_state, expected)
    for core, saved in zip(*([s.core for s in slots(m)] for m in (model, again)), strict=True):
        for name in ("num_clusters", "block_size", "dense_length", "look_ahead"):
            assert getattr(core, name) == getattr(saved, name)


@torch.no_grad()
def test_a_detached_model_is_saved_as_it_was(tiny, tmp_path) -> None:
    model = tiny("Bert")
    tokens = torch.randint(3, 50, (2, 19))
    expected = model(tokens).last_hidden_state
    huggingface.detach(huggingface.attach(model, "NeuralClusteringAttention"))
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    again = transformers.AutoModel.from_pretrained(tmp_path)
    assert torch.equal(again(tokens).last_hidden_state, expected)


def test_the_code_is_uploaded_with_the_weights(tiny, tmp_path, monkeypatch) -> None:
    """By `push_to_hub`, and where a folder is saved and uploaded at once, also a second time."""
    uploaded: list[set[str]] = []

    class Hub:
        def create_repo(self, name: str, **_: object) -> SimpleNamespace:
            return SimpleNamespace(repo_id=name)

        def create_commit(self, operations: list[Any], **_: object) -> None:
            uploaded.append({operation.path_in_repo for operation in operations})

    for module in ("utils.hub", "modeling_utils"):
        monkeypatch.setattr(f"transformers.{module}.hf_api", lambda *_, **__: Hub())
    card = SimpleNamespace(save=lambda path: None)
    for module in ("utils.hub", "modeling_utils"):
        name = f"transformers.{module}.create_and_tag_model_card"
        monkeypatch.setattr(name, lambda *_, **__: card)
    model = huggingface.attach(tiny("Bert"), "LocalAttention")
    model.push_to_hub("me/model")
    for _ in range(2):
        model.save_pretrained(tmp_path / "model", push_to_hub=True, repo_id="me/model")
    assert len(uploaded) == 3
    for files in uploaded:
        assert {"config.json", "model.safetensors", "modeling_clusterformer.py"} <= files
    model.save_pretrained(tmp_path / "other", is_main_process=False)
    assert not list((tmp_path / "other").iterdir())


class MyAttention(FullAttention):
    """A mechanism that is not in our folder."""


@torch.no_grad()
def test_a_mechanism_of_ones_own_is_given_to_load(tiny, tmp_path) -> None:
    huggingface.attach(tiny("Bert"), MyAttention).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="mechanism must be one of"):
        huggingface.load(tmp_path)
    model = huggingface.load(tmp_path, mechanism=MyAttention)
    assert any(isinstance(part, MyAttention) for part in model.modules())


def test_a_new_head_has_the_number_of_labels_that_is_asked_for(tiny, tmp_path) -> None:
    huggingface.attach(tiny("Bert"), "LocalAttention", window=3).save_pretrained(tmp_path)
    model = huggingface.load(tmp_path, "AutoModelForSequenceClassification", num_labels=3)
    assert model(torch.randint(3, 50, (2, 9))).logits.shape == (2, 3)
    assert huggingface.is_attached(model)
    half = huggingface.load(tmp_path, "AutoModelForTokenClassification", dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16


def test_folders_that_are_no_converted_model_are_refused(tiny, tmp_path, monkeypatch) -> None:
    def refused(folder: object, *model_class: object) -> str:
        with pytest.raises(ValueError, match=r"\w: ") as caught:
            huggingface.load(folder, *model_class)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "no config.json; give the folder of a model" in refused(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "no config.json; adapters of PEFT: load their model" in refused(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert "no model of transformers" in refused(tmp_path)
    tiny("Bert").save_pretrained(tmp_path)
    assert "names no mechanism" in refused(tmp_path)
    assert "no such folder" in refused(tmp_path / "missing")

    def unreachable(*_: object, **__: object) -> str:
        raise OSError

    with monkeypatch.context() as offline:  # transformers itself would try for 20 seconds
        offline.setattr("huggingface_hub.snapshot_download", unreachable)
        offline.setattr(transformers.AutoConfig, "from_pretrained", lambda *_: pytest.fail("tried"))
        assert "typo: no such folder, not downloaded before" in refused("typo")
    huggingface.attach(tiny("Bert"), "LocalAttention").save_pretrained(tmp_path)
    assert "LlamaModel is no class of transformers for bert" in refused(tmp_path, "LlamaModel")
    (tmp_path / "model.safetensors").write_bytes(b"cut short")
    assert "no weights" in refused(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert "no weights" in refused(tmp_path)
    with pytest.raises(ValueError, match=r"clusterformer\.huggingface\.load"):
        clusterformer.load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["clusterformer"]["options"] = [3]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "names no mechanism" in refused(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    assert "no model of transformers" in refused(tmp_path)


def test_a_model_whose_inner_one_was_detached_is_saved_as_it_was(tiny, tmp_path) -> None:
    model = huggingface.attach(tiny("Bert", "ForSequenceClassification"), "LocalAttention")
    huggingface.detach(model.bert)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    tokens = torch.arange(3, 13)[None]
    assert torch.equal(again.eval()(tokens).logits, model(tokens).logits)


def test_an_exported_folder_is_refused_without_a_question(tmp_path, monkeypatch) -> None:
    code = {"AutoConfig": "modeling_clusterformer.ClusterFormerConfig"}
    config = {"model_type": "clusterformer", "auto_map": code}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    for load in (huggingface.load, lambda folder: open_pretrained(str(folder))):
        with pytest.raises(ValueError, match=r"load it with clusterformer\.load") as said:
            load(tmp_path)
        assert "\n" not in str(said.value)
