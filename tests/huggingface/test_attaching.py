"""A mechanism in a model of transformers, and out of it again."""

import copy
import pickle
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from clusterformer import huggingface
from clusterformer.attention import mechanisms
from clusterformer.huggingface import dispatch
from clusterformer.losses import mechanism_loss

pytest.importorskip("transformers")

FAMILIES = ["Bert", "Roberta", "DistilBert", "ModernBert", "Llama", "Qwen3", "Mistral", "Gemma"]
DECODERS = FAMILIES[4:]
LIMITS = {
    "FullAttention": {},
    "LocalAttention": {"window": 32},
    "NeuralClusteringAttention": {"num_clusters": 1, "coupling": False, "chunk_size": 32},
    "ClusteredAttention": {"num_clusters": 19},
    "ImprovedClusteredAttention": {"num_clusters": 2, "top_k": 19},
    "MultipoleAttention": {"num_clusters": 19, "block_size": 32},
    "KeyClusteringAttention": {"num_clusters": 3},
    "RoutingAttention": {"num_clusters": 1},
    "PartlyLocalAttention": {"local_heads": 0},
    "BlockTopKAttention": {"block_size": 8, "top_k": 2},
    "IndexerAttention": {"top_k": 16},
}
"""Options with which a mechanism is full attention; Reformer has none, for it shares q and k."""
STRICT = {kind.__name__ for kind in mechanisms() if True in kind.causal_forms}
PAIRS = [(f, name) for f in FAMILIES for name in LIMITS if f not in DECODERS or name in STRICT]
SMALL = {
    "NeuralClusteringAttention": {"num_clusters": 3, "chunk_size": 4},
    "LocalAttention": {"window": 4},
    "ClusteredAttention": {"num_clusters": 3},
    "ImprovedClusteredAttention": {"num_clusters": 3, "top_k": 4},
    "MultipoleAttention": {"num_clusters": 3, "block_size": 4},
    "KeyClusteringAttention": {"num_clusters": 5, "min_width": 1},
    "QueryKeyClusteringAttention": {"num_clusters": 3, "chunk_size": 4, "dense_length": 5},
    "RoutingAttention": {"num_clusters": 3},
    "BlockTopKAttention": {"block_size": 4, "top_k": 2},
    "IndexerAttention": {"top_k": 3},
}


@pytest.mark.parametrize(
    ("family", "name"),
    [
        pytest.param(*pair, marks=[] if quick else pytest.mark.slow)
        for pair in PAIRS
        for quick in [pair[0] in ("Bert", "Llama") or pair[1] == "NeuralClusteringAttention"]
    ],
)
@torch.no_grad()
def test_what_equals_full_attention_changes_nothing(tiny, batch, family: str, name: str) -> None:
    wider = name == "ClusteredAttention" and family != "DistilBert"  # queries differ in their bits
    model = tiny(family, **({"num_attention_heads": 2} if wider else {}))
    inputs, mask = batch([11, 7, 3], 11, left=family in DECODERS)
    expected = model(**inputs).last_hidden_state[mask]
    assert huggingface.attach(model, name, **LIMITS[name]) is model
    found = model(**inputs).last_hidden_state[mask]
    assert (found - expected).abs().max() < 1e-5
    huggingface.detach(model)
    assert torch.equal(model(**inputs).last_hidden_state[mask], expected)


@pytest.mark.parametrize("name", [*SMALL, "FullAttention", "ReformerAttention"])
@pytest.mark.parametrize("left", [False, True])
@torch.no_grad()
def test_padding_changes_nothing(tiny, batch, name: str, left: bool) -> None:
    model = huggingface.attach(tiny("Bert"), name, **SMALL.get(name, {}))
    inputs, mask = batch([19, 7], 19, left)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    found = model(**inputs, position_ids=positions).last_hidden_state[1][mask[1]]
    alone = model(input_ids=inputs["input_ids"][1:][mask[1:]][None]).last_hidden_state[0]
    torch.testing.assert_close(found, alone)


@pytest.mark.parametrize("name", sorted(STRICT))
@pytest.mark.parametrize("family", ["Gemma"])
@torch.no_grad()
def test_the_future_does_not_leak(tiny, family: str, name: str) -> None:
    model = huggingface.attach(tiny(family), name, **SMALL.get(name, {}))
    tokens = torch.randint(3, 50, (2, 31))
    found = model(tokens).last_hidden_state
    for cut in (1, 13, 26):
        changed = torch.cat([tokens[:, :cut], torch.randint(3, 50, (2, 31 - cut))], 1)
        later = model(changed).last_hidden_state
        torch.testing.assert_close(later[:, :cut], found[:, :cut])
        assert not torch.allclose(later[:, cut:], found[:, cut:])


@torch.no_grad()
def test_a_sliding_window_stays_that_of_the_model(tiny, batch) -> None:
    model = tiny("Mistral", sliding_window=6)
    inputs, mask = batch([29, 7], 29, left=True)
    expected = model(**inputs).last_hidden_state[mask]
    huggingface.attach(model, "NeuralClusteringAttention", num_clusters=3)
    torch.testing.assert_close(model(**inputs).last_hidden_state[mask], expected)


@torch.no_grad()
@pytest.mark.parametrize("family", ["ModernBert", "Mistral"])
def test_padding_inside_a_text_is_warned_of_where_a_window_counts_tokens(
    tiny, batch, recwarn, monkeypatch, family: str
) -> None:
    """A model's own window counts padding too: there the values are others."""
    monkeypatch.setattr("clusterformer.huggingface.dispatch._warn_once", warnings.warn)
    window = {"sliding_window": 8} if family == "Mistral" else {}
    model = huggingface.attach(tiny(family, **window), "FullAttention")
    recwarn.clear()
    for left in (False, True):
        given, _ = batch([20, 9], 20, left)
        model(**given)
    assert not recwarn
    given["attention_mask"][0, 5:7] = 0
    with pytest.warns(UserWarning, match="padding inside a text"):
        model(**given)


def test_copies_and_pickles_have_the_mechanism(tiny) -> None:
    model = huggingface.attach(tiny("Bert"), "NeuralClusteringAttention", num_clusters=3)
    tokens = torch.randint(3, 50, (2, 17))
    expected = model(tokens).last_hidden_state
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(tokens).last_hidden_state, expected)
        assert type(twin).__name__ == "BertModel"


def test_threads_do_not_get_the_inputs_of_each_other(tiny) -> None:
    model = huggingface.attach(tiny("Bert"), "NeuralClusteringAttention", num_clusters=3)
    rows = [torch.randint(3, 50, (2, 17)) for _ in range(2)]
    both = threading.Barrier(2, timeout=60)

    def wait(*_: object) -> None:
        both.wait()

    @torch.no_grad()
    def run(tokens: torch.Tensor) -> torch.Tensor:
        return model(tokens).last_hidden_state

    expected = [run(tokens) for tokens in rows]
    query = model.encoder.layer[0].attention.self.query  # behind the input, before the mechanism
    query.register_forward_hook(wait)
    with ThreadPoolExecutor(2) as threads:
        assert all(map(torch.equal, threads.map(run, rows), expected))


@torch.no_grad()
def test_groupings_are_recorded_by_layer(tiny) -> None:
    model = huggingface.attach(tiny("Bert"), "NeuralClusteringAttention", num_clusters=3)
    with huggingface.groupings(model) as found:
        model(torch.randint(3, 50, (2, 17)))
    assert [grouping.assignment.shape for grouping in found] == [(2, 17)] * 3
    model(torch.randint(3, 50, (2, 17)))
    assert len(found) == 3


@torch.no_grad()
def test_groupings_are_recorded_around_whatever_else_records_them(tiny) -> None:
    model = huggingface.attach(tiny("Bert"), "NeuralClusteringAttention", num_clusters=3)
    tokens = torch.randint(3, 50, (2, 17))
    with huggingface.groupings(model) as found:
        huggingface.keys_seen(model, {"input_ids": tokens})
        assert len(found) == 3
        with huggingface.groupings(model) as inner:
            model(tokens)
        model(tokens)
    assert (len(found), len(inner)) == (9, 3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("RoutingAttention", {"num_clusters": 3, "local_heads": 0}),
        ("QueryKeyClusteringAttention", {"num_clusters": 8, "chunk_size": 2, "dense_length": 0}),
    ],
)
def test_what_a_token_sees_is_that_of_evaluation(tiny, name, options) -> None:
    """A model that was just trained, but for its embeddings, comes out as it went in."""
    model = huggingface.attach(tiny("Bert"), name, **options)
    batch = {"input_ids": torch.randint(3, 50, (2, 40))}
    expected = huggingface.keys_seen(model, batch)
    vectors = {"inputs_embeds": model.get_input_embeddings()(batch["input_ids"])}
    for given in (vectors, {**vectors, "attention_mask": torch.ones(2, 40)}):
        assert huggingface.keys_seen(model, given) == expected
    model.train().embeddings.eval()
    modes = [part.training for part in model.modules()]
    start = copy.deepcopy(model.state_dict())
    assert [huggingface.keys_seen(model, batch) for _ in range(2)] == [expected] * 2
    assert [part.training for part in model.modules()] == modes
    assert all(torch.equal(x, start[key]) for key, x in model.state_dict().items())


def test_weights_of_the_mechanism_are_trained(tiny) -> None:
    model = tiny("Bert", "ForSequenceClassification").train()
    huggingface.attach(model, "NeuralClusteringAttention", num_clusters=3)
    tokens, labels = torch.randint(3, 50, (4, 17)), torch.tensor([0, 1, 0, 1])
    model(tokens, labels=labels).loss.backward()
    own = {name: p.grad for name, p in model.named_parameters() if ".clusterformer." in name}
    trained = [name for name, grad in own.items() if grad is not None and grad.abs().sum() > 0]
    assert sum(name.endswith("space.weight") for name in trained) == 3


def test_a_loss_that_no_one_adds_is_warned_of_once(tiny) -> None:
    dispatch._warn_once.cache_clear()
    model = huggingface.attach(tiny("Bert"), "IndexerAttention", top_k=4).train()
    tokens = torch.randint(3, 50, (2, 17))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with huggingface.groupings(model):
            model(tokens)
        with torch.no_grad():
            model(tokens)
    with pytest.warns(UserWarning, match="IndexerAttention learns from a loss of its own"):
        model(tokens)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(tokens)


def test_a_decoder_with_its_cache_records_and_warns_too(tiny) -> None:
    """The cache of transformers is on by default, in training as well."""
    dispatch._warn_once.cache_clear()
    model = huggingface.attach(tiny("Llama", "ForCausalLM"), "IndexerAttention", top_k=4).train()
    tokens = torch.randint(3, 50, (2, 17))
    losses = []
    for use_cache in (True, False):
        with huggingface.groupings(model) as found:
            model(tokens, labels=tokens, use_cache=use_cache)
        losses.append(mechanism_loss(found))
    assert losses[0].equal(losses[1])
    with pytest.warns(UserWarning, match="IndexerAttention learns from a loss of its own"):
        model(tokens, labels=tokens)


def test_activation_checkpointing_keeps_the_loss_or_says_that_it_cannot(tiny) -> None:
    dispatch._warn_once.cache_clear()
    model = huggingface.attach(tiny("Bert"), "IndexerAttention", top_k=4).train()
    model.enable_input_require_grads()
    tokens = torch.randint(3, 50, (2, 17))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with huggingface.groupings(model) as found:
            values = model(tokens).last_hidden_state
        (values.sum() + mechanism_loss(found)).backward()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with huggingface.groupings(model) as found:
        values = model(tokens).last_hidden_state
    assert mechanism_loss(found) is None
    with pytest.warns(UserWarning, match='"use_reentrant": False'):
        values.sum().backward()


@pytest.mark.parametrize(
    ("family", "mechanism", "options", "message"),
    [
        ("Bert", "Clustered", {}, "mechanism must be one of .*FullAttention"),
        ("Bert", "ClusteredAttention", {"clusters": 3}, "has no option 'clusters'; it has"),
        ("Bert", "ClusteredAttention", {"num_heads": 3}, "num_heads is that of the model"),
        ("Bert", "FullAttention", {"causal": True}, "causal must be False"),
        ("Bert", "NeuralClusteringAttention", {"num_clusters": 0}, "num_clusters"),
        *(
            (
                "Bert",
                "NeuralClusteringAttention",
                {"num_clusters": value},
                "num_clusters must be int",
            )
            for value in ("8", 8.5, True, [8])
        ),
        ("Bert", "NeuralClusteringAttention", {"alpha": "much"}, "alpha must be float, got 'much'"),
        ("Bert", "NeuralClusteringAttention", {"coupling": 1}, "coupling must be bool, got 1"),
        ("Llama", "ClusteredAttention", {}, "cannot be causal, as .* is; mechanisms that can"),
        ("Gemma2", "FullAttention", {}, "caps its logits"),
        ("GptOss", "FullAttention", {}, "attention sinks"),
        ("Bart", "FullAttention", {}, "cross-attention"),
        ("Deberta", "FullAttention", {}, "AttentionInterface"),
        ("DiffLlama", "FullAttention", {}, "attends twice a layer"),
        ("LayoutLM", "FullAttention", {}, "a mask of its own"),
        ("MarkupLM", "FullAttention", {}, "a mask of its own"),
        ("Doge", "FullAttention", {}, "a mask of its own"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(
    tiny, family: str, mechanism: str, options: dict[str, object], message: str
) -> None:
    model = tiny(family)
    before, kind = set(dict(model.named_modules())), type(model)
    with pytest.raises(ValueError, match=message) as caught:
        huggingface.attach(model, mechanism, **options)
    assert "\n" not in str(caught.value)
    assert set(dict(model.named_modules())) == before
    assert type(model) is kind
    assert not hasattr(model.config, "clusterformer")
    assert not any(part._forward_pre_hooks for part in model.modules())


def test_packed_sequences_are_refused(tiny) -> None:
    model = huggingface.attach(tiny("Llama"), "FullAttention")
    positions = torch.tensor([[0, 1, 2, 0, 1]])
    with pytest.raises(ValueError, match="a mask other than of padding"):
        model(torch.randint(3, 50, (1, 5)), position_ids=positions, use_cache=False)
    ends = torch.tensor([0, 3, 5], dtype=torch.int32)  # as collators for flash attention say it
    for packed in (model, huggingface.attach(tiny("ModernBert"), "FullAttention")):
        with pytest.raises(ValueError, match="a mask other than of padding"):
            packed(torch.randint(3, 50, (1, 5)), cu_seq_lens_q=ends, cu_seq_lens_k=ends)


def test_what_is_no_model_of_transformers_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a PreTrainedModel of transformers, got Linear"):
        huggingface.attach(torch.nn.Linear(2, 2), "FullAttention")  # type: ignore[type-var]


@torch.no_grad()
def test_a_mechanism_that_is_gone_past_is_not_attached(tiny) -> None:
    model, tokens = tiny("Bert"), torch.randint(3, 50, (2, 17))
    expected = model(tokens).last_hidden_state
    huggingface.attach(model, "LocalAttention", window=3)
    found = model(tokens).last_hidden_state
    model.set_attn_implementation("sdpa")
    assert not huggingface.is_attached(model)
    with pytest.raises(ValueError, match="a mechanism attached"):
        huggingface.distill(model, [{"input_ids": tokens}])
    huggingface.attach(model, "LocalAttention", window=3)  # over the one that is still there
    assert huggingface.is_attached(model)
    assert torch.equal(model(tokens).last_hidden_state, found)
    model.set_attn_implementation("sdpa")
    huggingface.detach(model)
    assert torch.equal(model(tokens).last_hidden_state, expected)
    assert not any(part._forward_pre_hooks for part in model.modules())


def test_detaching_twice_is_refused(tiny) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = huggingface.detach(huggingface.attach(tiny("Bert"), "FullAttention"))
    with pytest.raises(ValueError, match="no mechanism"):
        huggingface.detach(model)


@torch.no_grad()
def test_a_mechanism_of_the_inner_model_is_detached_and_replaced_from_the_outer(tiny) -> None:
    model, tokens = tiny("Bert", "ForMaskedLM"), torch.arange(3, 13)[None]
    kind, expected = type(model), model(tokens).logits
    huggingface.attach(model.bert, "LocalAttention", window=2)
    huggingface.attach(model, "FullAttention")
    torch.testing.assert_close(model(tokens).logits, expected)
    huggingface.detach(model)
    huggingface.attach(model.bert, "LocalAttention", window=2)
    huggingface.detach(model)
    assert type(model) is kind
    assert torch.equal(model(tokens).logits, expected)


def test_an_encoder_beside_a_decoder_takes_a_mechanism(tiny, batch) -> None:
    """Its layers read a config of their own there, which is not that of the encoder."""
    transformers = pytest.importorskip("transformers")
    decoder = tiny("Bert", "LMHeadModel", is_decoder=True, add_cross_attention=True)
    model = transformers.EncoderDecoderModel(encoder=tiny("Bert"), decoder=decoder).eval()
    given, _ = batch([20, 9], 20)
    given["decoder_input_ids"] = given["input_ids"][:, :5]
    expected = model(**given).logits
    huggingface.attach(model.encoder, "FullAttention")
    with huggingface.groupings(model) as found:
        torch.testing.assert_close(model(**given).logits, expected)
    assert len(found) == 3
    assert huggingface.is_attached(model.encoder)
    huggingface.attach(model.encoder, "NeuralClusteringAttention", num_clusters=6)
    assert not torch.allclose(model(**given).logits, expected)
    huggingface.detach(model.encoder)
    assert torch.equal(model(**given).logits, expected)


def test_a_mechanism_of_a_part_is_detached_from_that_part_only() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    texts = {**sizes, "vocab_size": 50, "intermediate_size": 32}
    images = {**sizes, "image_size": 8, "patch_size": 4, "intermediate_size": 32}
    model = transformers.CLIPModel(
        transformers.CLIPConfig(text_config=texts, vision_config=images, projection_dim=16)
    )
    huggingface.attach(model.text_model, "FullAttention")
    with pytest.raises(ValueError, match=r"has its mechanism in CLIPText\w+; give that model"):
        huggingface.detach(model)
    assert huggingface.is_attached(model.text_model)
    huggingface.detach(model.text_model)
    assert not huggingface.is_attached(model)


class Quantised(torch.nn.Module):
    """A linear map whose weights are whole numbers, in a parameter or in a buffer."""

    def __init__(self, linear: torch.nn.Linear, buffer: bool) -> None:
        super().__init__()
        self.step = float(linear.weight.detach().abs().max()) / 127
        bias = None if linear.bias is None else linear.bias.detach().clone()
        self.bias = torch.nn.Buffer(bias) if buffer and bias is not None else linear.bias
        whole = (linear.weight.detach() / self.step).round().to(torch.int8)
        self.weight = torch.nn.Buffer(whole) if buffer else torch.nn.Parameter(whole, False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight.to(x.dtype) * self.step, self.bias)


@pytest.mark.parametrize(
    ("family", "buffer"), [("Bert", True), ("Bert", False), ("Llama", True), ("Llama", False)]
)
@torch.no_grad()
def test_layers_of_quantised_weights_take_a_mechanism(tiny, batch, family: str, buffer) -> None:
    model = tiny(family)
    for part in list(model.modules()):
        for name, child in list(part.named_children()):
            if isinstance(child, torch.nn.Linear):
                setattr(part, name, Quantised(child, buffer))
    model.to(torch.bfloat16)
    inputs, mask = batch([19, 7], 19)
    expected = model(**inputs).last_hidden_state
    huggingface.attach(model, "NeuralClusteringAttention", **LIMITS["NeuralClusteringAttention"])
    assert {x.dtype for x in dispatch.slots(model)[0].core.parameters()} == {torch.bfloat16}
    found = model(**inputs).last_hidden_state
    torch.testing.assert_close(found[mask], expected[mask], atol=0.1, rtol=0.1)


MEMORY = """
import resource, torch
from transformers import BertConfig, BertModel
from clusterformer import huggingface

torch.set_num_threads(1)
sizes = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
model = BertModel(BertConfig(**sizes, max_position_embeddings=32_768)).eval()
huggingface.attach(model, "NeuralClusteringAttention", num_clusters=128)
tokens = torch.randint(1000, (1, 32_768))
mask = torch.ones_like(tokens)
mask[:, -9:] = 0
with torch.no_grad():
    model(tokens[:, :512], attention_mask=mask[:, -512:])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model(tokens, attention_mask=mask)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has another unit")
def test_no_mask_of_all_pairs_is_made() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 32_768**2 / 2**20 / 4  # a quarter of an N x N mask, in MiB
