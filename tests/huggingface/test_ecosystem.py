"""Converted models in what others have for models: Trainer, PEFT, sentences."""

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterformer import huggingface
from clusterformer.attention import MultiHeadAttention, NeuralClusteringAttention, adapters
from clusterformer.huggingface.dispatch import slots

transformers = pytest.importorskip("transformers")


def rows(count: int) -> list[dict[str, object]]:
    tokens = torch.randint(3, 50, (count, 17))
    return [{"input_ids": row.tolist(), "labels": int(row[0] > 25)} for row in tokens]


@pytest.mark.slow
def test_the_trainer_of_transformers_trains_saves_and_resumes(tiny, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    model = tiny("Bert", "ForSequenceClassification")
    huggingface.attach(model, "NeuralClusteringAttention", num_clusters=3)
    start = {name: x.clone() for name, x in model.state_dict().items()}
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=4, save_steps=2, per_device_train_batch_size=4,
        learning_rate=1e-2, report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    data = rows(16)
    transformers.Trainer(model, arguments, train_dataset=data).train()
    moved = [n for n, x in model.state_dict().items() if not torch.equal(x, start[n])]
    assert any(name.endswith("core.space.weight") for name in moved)
    saved = huggingface.load(tmp_path / "checkpoint-4")
    tokens = torch.tensor([row["input_ids"] for row in data])
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(saved(tokens).logits, model(tokens).logits)
    resumed = transformers.Trainer(saved.train(), arguments, train_dataset=data)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for name, x in saved.state_dict().items():
        torch.testing.assert_close(x, model.state_dict()[name])


def trainer_of_the_guide() -> Any:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "hugging-face.md"
    blocks = guide.read_text(encoding="utf-8").split("```python\n")
    [block] = [block for block in blocks if "class TrainerOfMechanisms" in block]
    names: dict[str, Any] = {}
    exec(block.partition("\n\n\nsizes = ")[0], names)
    return names["TrainerOfMechanisms"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "options", "weights"),
    [
        ("IndexerAttention", {"top_k": 4}, "index_queries.weight"),
        ("NeuralClusteringAttention", {"num_clusters": 3}, "centroids"),
    ],
)
def test_the_guide_trains_what_the_trainer_of_transformers_does_not(
    tiny, tmp_path: Path, mechanism, options, weights
) -> None:
    data = [row | {"attention_mask": [1] * 17} for row in rows(8)]
    moved = []
    for trainer in (transformers.Trainer, trainer_of_the_guide()):
        model = tiny("Bert", "ForSequenceClassification")
        huggingface.attach(model, mechanism, **options)
        start = {name: x.clone() for name, x in model.state_dict().items()}
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=2, save_strategy="no", report_to=[], use_cpu=True,
            disable_tqdm=True,
        )  # fmt: skip
        trainer(model, arguments, train_dataset=data).train()
        now = model.state_dict()
        moved.append({n for n, x in now.items() if n.endswith(weights) and not x.equal(start[n])})
    assert len(moved[0]) == 0
    assert len(moved[1]) == 3


@pytest.mark.slow
def test_the_losses_of_the_guide_weigh_the_same_in_accumulated_batches(
    tiny, tmp_path: Path
) -> None:
    model = tiny("Llama", "ForCausalLM", num_hidden_layers=1)
    huggingface.attach(model, "NeuralClusteringAttention", num_clusters=3)
    data = [row | {"attention_mask": [1] * 17, "labels": row["input_ids"]} for row in rows(4)]
    moved = []
    for size in (4, 1):
        twin = copy.deepcopy(model)
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=1, per_device_train_batch_size=size, optim="sgd",
            gradient_accumulation_steps=4 // size, learning_rate=1.0, max_grad_norm=0.0,
            save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        trainer_of_the_guide()(twin, arguments, train_dataset=data).train()
        [start, end] = (slots(x)[0].core.centroids.detach() for x in (model, twin))
        moved.append(end - start)
    assert moved[0].any()
    torch.testing.assert_close(moved[1], moved[0], rtol=1e-3, atol=1e-5)


def test_a_mechanism_that_peft_trains_can_be_calibrated(tiny) -> None:
    peft = pytest.importorskip("peft")
    base = huggingface.attach(tiny("Bert"), "NeuralClusteringAttention", num_clusters=3)
    config = peft.LoraConfig(target_modules=["query"], modules_to_save=["clusterformer"])
    model = peft.get_peft_model(base, config)
    start = {name: x.clone() for name, x in model.state_dict().items()}
    assert len(huggingface.calibrate(model, [{"input_ids": torch.randint(3, 50, (2, 17))}])) == 3
    now = model.state_dict()
    moved = {name for name, x in now.items() if not torch.equal(x, start[name])}
    assert sum(name.endswith("default.core.space.weight") for name in moved) == 3
    assert not any(".original_module." in name for name in moved)


@pytest.mark.parametrize("clusters", ["random", "k-means"])
def test_peft_trains_of_a_mechanism_what_is_trained_without_it(tiny, clusters: str) -> None:
    peft = pytest.importorskip("peft")
    options = {"num_clusters": 3, "clusters": clusters}
    base = huggingface.attach(tiny("Bert"), "NeuralClusteringAttention", **options)
    trained = {n.rpartition(".clusterformer.")[2] for n, p in base.named_parameters()
               if ".clusterformer." in n and p.requires_grad}  # fmt: skip
    config = peft.LoraConfig(target_modules=["query"], modules_to_save=["clusterformer"])
    model = peft.get_peft_model(base, config)
    found = {n.rpartition(".default.")[2] for n, p in model.named_parameters()
             if ".clusterformer." in n and p.requires_grad}  # fmt: skip
    assert found == trained == {"core.log_alpha"}


def test_a_model_with_adapters_is_distilled_and_detached_after_they_are_merged(tiny) -> None:
    peft = pytest.importorskip("peft")
    base = huggingface.attach(tiny("Bert"), "NeuralClusteringAttention", num_clusters=3)
    config = peft.LoraConfig(target_modules=["query"], modules_to_save=["clusterformer"])
    model, tokens = peft.get_peft_model(base, config), torch.randint(3, 50, (2, 17))
    for refused in (
        lambda: huggingface.distill(model, [tokens]),
        lambda: huggingface.detach(model),
    ):
        with pytest.raises(ValueError, match=r"got PeftModel; give its merge_and_unload\(\)$"):
            refused()
    merged = model.merge_and_unload()
    huggingface.distill(merged, [{"input_ids": tokens}], steps=1)
    assert not huggingface.is_attached(huggingface.detach(merged))
    merged(tokens)


@pytest.mark.slow
def test_adapters_and_the_mechanism_are_trained_by_peft(tiny, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base = tiny("Bert", "ForSequenceClassification")
    huggingface.attach(base, "NeuralClusteringAttention", num_clusters=3)
    base.save_pretrained(tmp_path / "base")
    config = peft.LoraConfig(
        task_type="SEQ_CLS", r=2, target_modules=["query", "value"],
        modules_to_save=["classifier", "clusterformer"],
    )  # fmt: skip
    model = peft.get_peft_model(base, config)
    trained = {name for name, x in model.named_parameters() if x.requires_grad}
    assert any("lora_A" in name for name in trained)
    assert any("space.weight" in name for name in trained)
    assert not any(name.endswith("query.base_layer.weight") for name in trained)
    optimizer = torch.optim.SGD([x for x in model.parameters() if x.requires_grad], lr=0.02)
    tokens, labels = torch.randint(3, 50, (8, 17)), torch.arange(8) % 2
    losses = []
    for _step in range(8):
        loss = model.eval()(input_ids=tokens, labels=labels).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    with torch.no_grad():
        expected = model(input_ids=tokens).logits
        model.save_pretrained(tmp_path / "adapter")
        fresh = huggingface.load(tmp_path / "base")
        again = peft.PeftModel.from_pretrained(fresh, tmp_path / "adapter").eval()
        torch.testing.assert_close(again(input_ids=tokens).logits, expected)
    with pytest.raises(ValueError, match="attach the mechanism first, then add adapters"):
        huggingface.attach(model, "FullAttention")


def test_adapters_that_a_mechanism_goes_past_are_warned_of_once(tiny) -> None:
    adapters._warn_once.cache_clear()
    peft = pytest.importorskip("peft")
    tokens = torch.randint(3, 50, (2, 17))
    for saved in (["clusterformer"], None):
        base = huggingface.attach(tiny("Bert"), "NeuralClusteringAttention", num_clusters=3)
        config = peft.LoraConfig(r=2, target_modules="all-linear", modules_to_save=saved)
        model = peft.get_peft_model(base, config).train()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.eval()(tokens)
            if saved:
                model.train()(tokens)
    with pytest.warns(UserWarning, match="adapters inside the attention mechanism learn nothing"):
        model.train()(tokens)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(tokens)


def test_adapters_in_a_layer_of_ones_own_model_are_warned_of_and_the_way_trains() -> None:
    adapters._warn_once.cache_clear()
    peft = pytest.importorskip("peft")
    x = torch.randn(2, 17, 32)
    core = NeuralClusteringAttention(d_model=32, num_heads=4, num_clusters=3)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), MultiHeadAttention(core))
    twin = copy.deepcopy(model)
    config = peft.LoraConfig(r=2, target_modules="all-linear")
    with pytest.warns(UserWarning, match=r'learn nothing.* add modules_to_save=\["core"\]'):
        peft.get_peft_model(model, config).train()(x)
    config = peft.LoraConfig(r=2, target_modules="all-linear", modules_to_save=["core"])
    trained = peft.get_peft_model(twin, config).train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(x).values.square().sum().backward()
    grads = {n for n, w in trained.named_parameters() if w.grad is not None and w.grad.any()}
    assert any(name.endswith("core.modules_to_save.default.space.weight") for name in grads)
    assert any(name.endswith("q_proj.lora_B.default.weight") for name in grads)


@pytest.mark.slow
def test_sentence_transformers_load_a_converted_folder(tiny, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    tokenizer = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
    model = huggingface.attach(tiny("Bert"), "NeuralClusteringAttention", num_clusters=3)
    model.save_pretrained(tmp_path / "converted")
    tokenizer.save_pretrained(tmp_path / "converted")
    texts = ["a b c", "d e f g h a a a"]
    encoder = sentence_transformers.SentenceTransformer(
        str(tmp_path / "converted"), trust_remote_code=True, device="cpu"
    )
    found = encoder.encode(texts, convert_to_tensor=True)
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    torch.testing.assert_close(found, (hidden * mask).sum(1) / mask.sum(1))
    assert huggingface.is_attached(encoder)
    for refuse in (huggingface.calibrate, huggingface.distill):
        with pytest.raises(ValueError, match=r"got SentenceTransformer; give its model\[0\]"):
            refuse(encoder, texts, tokenizer)
    assert len(huggingface.calibrate(encoder[0].auto_model, texts, tokenizer)) == 3


def test_a_mechanism_whose_weights_are_offloaded_is_refused(tiny, tmp_path: Path) -> None:
    """Accelerate brings weights to the module that is called; a mechanism reads them itself."""
    pytest.importorskip("accelerate")
    model = huggingface.attach(tiny("Llama"), "NeuralClusteringAttention", num_clusters=3)
    model.save_pretrained(tmp_path)
    places = {"embed_tokens": "cpu", "layers": "disk", "norm": "cpu", "rotary_emb": "cpu"}
    offload = {"device_map": places, "offload_folder": str(tmp_path / "offloaded")}
    again = huggingface.load(tmp_path, **offload)
    for cached in (True, False):
        with pytest.raises(ValueError, match=r"NeuralClusteringAttention reads .* are offloaded"):
            again(torch.randint(3, 50, (2, 19)), use_cache=cached)
    huggingface.attach(model, "LocalAttention").save_pretrained(tmp_path)  # has no weights
    tokens = torch.randint(3, 50, (2, 19))
    with torch.no_grad():
        found = huggingface.load(tmp_path, **offload)(tokens).last_hidden_state
        torch.testing.assert_close(found, model(tokens).last_hidden_state)


NEAR = {"block_size": 4, "dense_length": 0, "global_tokens": 1, "local_heads": 1}


@pytest.mark.slow
def test_a_compiled_model_gives_the_same(tiny, batch) -> None:
    """Values and gradients, at two lengths, with and without padding, in one graph."""
    model = tiny("Bert", num_hidden_layers=2)
    model = huggingface.attach(model, "NeuralClusteringAttention", **NEAR)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for lengths in ([40, 23], [33, 33]):
        inputs, mask = batch(lengths, lengths[0])
        ours, theirs = (run(**inputs).last_hidden_state[mask] for run in (compiled, model))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        weight = torch.randn_like(ours)
        gradients = [
            torch.autograd.grad(
                (found * weight).sum(), list(model.parameters()), materialize_grads=True
            )
            for found in (ours, theirs)
        ]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_a_compiled_model_is_refused_with_what_to_do(tiny) -> None:
    compiled: Any = torch.compile(tiny("Bert"))
    with pytest.raises(ValueError, match="got OptimizedModule; give the model that"):
        huggingface.attach(compiled, "FullAttention")


@pytest.mark.slow
def test_a_compiled_decoder_needs_no_mask(tiny) -> None:
    """Compiled, transformers takes every row without a mask for a packed one."""
    model = huggingface.attach(tiny("Llama", "Model", num_hidden_layers=1), "FullAttention")
    tokens = torch.randint(3, 50, (2, 9))
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        found = compiled(tokens, use_cache=False).last_hidden_state
        expected = model(tokens, use_cache=False).last_hidden_state
        torch.testing.assert_close(found, expected)
        packed = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3]])
        with pytest.raises(RuntimeError, match="give one sequence a row"):
            compiled(tokens, position_ids=packed, use_cache=False)
