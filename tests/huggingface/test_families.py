"""Families of models with ways of their own: caches, causality, shared layers, positions."""

import warnings
from typing import Any

import pytest
import torch

from clusterformer import huggingface
from clusterformer.errors import InputError
from clusterformer.huggingface.recording import calls

transformers = pytest.importorskip("transformers")
SIZES: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 64, "initializer_range": 0.2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
TOKENS = torch.arange(3, 43).view(2, 20)


def make(name: str, **further: Any) -> Any:
    family = name.removesuffix("ForCausalLM").removesuffix("Model")
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **further})
    torch.manual_seed(0)
    return getattr(transformers, name)(config).eval()


@pytest.mark.parametrize("name", ["GPTNeoXForCausalLM", "LlamaForCausalLM"])
def test_the_cache_is_found_by_any_of_its_names(name: str) -> None:
    model = make(name)
    options: dict[str, Any] = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    own = model.generate(TOKENS, **options)
    huggingface.attach(model, "FullAttention")
    assert torch.equal(model.generate(TOKENS, **options), own)
    huggingface.attach(model, "NeuralClusteringAttention", num_clusters=4, chunk_size=4)
    cached = model.generate(TOKENS, **options)
    assert torch.equal(model.generate(TOKENS, use_cache=False, **options), cached)


@pytest.mark.slow
def test_a_module_that_fills_several_layers_of_the_cache_decodes() -> None:
    """HRM goes through its layers several times, and each time has keys of its own."""
    model = make("HrmTextForCausalLM", num_hidden_layers=8)
    own = model(TOKENS).logits
    huggingface.attach(model, "FullAttention")
    torch.testing.assert_close(model(TOKENS).logits, own)
    huggingface.attach(model, "NeuralClusteringAttention", num_clusters=4, chunk_size=4)
    options: dict[str, Any] = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    cached = model.generate(TOKENS, **options)
    assert torch.equal(model.generate(TOKENS, use_cache=False, **options), cached)


def test_decoding_works_under_autocast() -> None:
    model = huggingface.attach(make("LlamaForCausalLM"), "FullAttention")
    with torch.autocast("cpu", torch.bfloat16):
        model.generate(TOKENS, max_new_tokens=3, do_sample=False)


def test_layers_that_are_called_causal_are_causal() -> None:
    model = make("CLIPTextModel", projection_dim=32)
    own = model(TOKENS).last_hidden_state
    huggingface.attach(model, "FullAttention")
    assert torch.allclose(model(TOKENS).last_hidden_state, own, atol=1e-5)
    changed = TOKENS.clone()
    changed[:, 15:] = 7
    assert torch.equal(
        model(changed).last_hidden_state[:, :15], model(TOKENS).last_hidden_state[:, :15]
    )


WINDOWS: dict[str, dict[str, Any]] = {
    "LlamaModel": {"sliding_window": 6},
    "MiniMaxModel": {"sliding_window": 6, "num_local_experts": 2, "num_key_value_heads": 2},
    "ModernBertDecoderModel": {"local_attention": 12},
}


@pytest.mark.parametrize("name", WINDOWS)
@torch.no_grad()
def test_a_window_is_that_of_the_attention_and_not_of_the_config(name: str) -> None:
    """Llama's attention reads no `sliding_window`, MiniMax's does in layers of full attention.

    The config of ModernBertDecoder does not declare the window that it makes of another option.
    """
    model = make(name, **WINDOWS[name])
    own = model(TOKENS, use_cache=False).last_hidden_state
    huggingface.attach(model, "FullAttention")
    found = model(TOKENS, use_cache=False).last_hidden_state
    torch.testing.assert_close(found, own)


def test_layers_may_share_a_mechanism() -> None:
    sizes = {"embedding_size": 32, "num_hidden_layers": 3}
    model = huggingface.attach(make("AlbertModel", **sizes), "LocalAttention", window=2)
    with huggingface.groupings(model) as found:
        model(TOKENS)
    assert len(found) == 3
    seen = huggingface.keys_seen(model, {"input_ids": TOKENS})
    assert seen == pytest.approx((2 * 2 + 18 * 3) / 20 / 20)


@pytest.mark.parametrize("name", ["OPTModel", "RobertaModel"])
def test_extended_positions_load(name: str, tmp_path: Any) -> None:
    sizes = {"ffn_dim": 32, "word_embed_proj_dim": 32} if name == "OPTModel" else {}
    model = huggingface.extend_positions(make(name, **sizes), 100)
    huggingface.attach(model, "FullAttention").save_pretrained(tmp_path)
    long = torch.arange(100)[None] % 40 + 3
    again = huggingface.load(tmp_path)
    assert torch.equal(again(long).last_hidden_state, model(long).last_hidden_state)


@torch.no_grad()
def test_a_family_with_the_models_of_another_is_loaded(tmp_path: Any) -> None:
    """InternLM3 has a configuration of its own, and Llama's models."""
    config = transformers.InternLM3Config(**SIZES, num_key_value_heads=1)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    huggingface.attach(model, "FullAttention").save_pretrained(tmp_path)
    for again in (
        huggingface.load(tmp_path),
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True),
    ):
        assert torch.equal(again(TOKENS).logits, model(TOKENS).logits)


@pytest.mark.parametrize("name", ["BertModel", "LlamaModel"])
@torch.no_grad()
def test_weights_that_no_mechanism_returns_are_warned_of(name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("clusterformer.huggingface.dispatch._warn_once", warnings.warn)
    model = huggingface.attach(make(name), "FullAttention")
    with pytest.warns(UserWarning, match="returns no attention weights"):
        model(TOKENS, output_attentions=True)


@torch.no_grad()
def test_an_input_of_another_width_than_the_model_is_clustered(tmp_path: Any) -> None:
    """MobileBERT narrows its hidden states before attention."""
    model = make("MobileBertModel", intra_bottleneck_size=16, embedding_size=32)
    huggingface.attach(model, "NeuralClusteringAttention", num_clusters=4)
    found = model(TOKENS).last_hidden_state
    model.save_pretrained(tmp_path)
    assert torch.equal(huggingface.load(tmp_path)(TOKENS).last_hidden_state, found)


@torch.no_grad()
def test_a_config_of_a_part_that_is_not_there_is_no_second_model(tmp_path: Any) -> None:
    """ESM's names that of a folding model, which is None in an encoder."""
    model = make("EsmModel", position_embedding_type="rotary", mask_token_id=3)
    mask = torch.arange(20) < torch.tensor([[20], [12]])
    own = model(TOKENS, attention_mask=mask).last_hidden_state[mask]
    huggingface.attach(model, "FullAttention")
    found = model(TOKENS, attention_mask=mask).last_hidden_state[mask]
    torch.testing.assert_close(found, own)
    model.save_pretrained(tmp_path)
    again = huggingface.load(tmp_path)
    assert torch.equal(again(TOKENS, attention_mask=mask).last_hidden_state[mask], found)


def test_models_of_one_config_are_told_apart() -> None:
    config = transformers.BertConfig(**SIZES)
    first, second = transformers.BertModel(config), transformers.BertModel(config)
    huggingface.attach(first, "FullAttention")
    with pytest.raises(InputError, match="another model with a mechanism has the same config"):
        huggingface.attach(second, "LocalAttention", window=4)
    with pytest.raises(ValueError, match="give each model a config of its own"):
        second(TOKENS)
    huggingface.detach(first)
    huggingface.attach(second, "LocalAttention", window=4)
    second(TOKENS)


def test_heads_that_the_config_does_not_tell_are_named_without_a_guess() -> None:
    """JetMoe has num_key_value_heads for each expert, whatever num_attention_heads says."""
    sizes = {"kv_channels": 16, "num_key_value_heads": 1, "num_local_experts": 4}
    model = make("JetMoeModel", num_attention_heads=4, **sizes)
    huggingface.attach(model, "FullAttention")
    with pytest.raises(ValueError, match=r"has 2 heads of width 16, the mechanism 4 of 16$"):
        model(TOKENS)


PICTURES: dict[str, Any] = {"image_size": 16, "patch_size": 4}
SOUNDS: dict[str, Any] = {"num_key_value_heads": 2, "hidden_act": "silu"}
STAGES: dict[str, Any] = {
    "num_encoder_blocks": 2, "num_attention_heads": [1, 2], "hidden_sizes": [16, 32],
    "depths": [1, 1], "sr_ratios": [2, 1], "patch_sizes": [3, 3], "strides": [2, 2],
    "mlp_ratios": [2, 2],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "further", "told"),
    [
        ("T5EncoderModel", {"d_kv": 16, "d_model": 32, "num_heads": 2}, "relative positions"),
        ("BeitModel", {**PICTURES, "use_relative_position_bias": True}, "relative positions"),
        ("BeitModel", {**PICTURES, "use_shared_relative_position_bias": True}, "relative pos"),
        ("SwinModel", {**PICTURES, "embed_dim": 8, "depths": [1], "num_attention_heads": [2],
                       "window_size": 2}, "relative positions"),
        ("Wav2Vec2BertModel", {"position_embeddings_type": "relative"}, "relative positions"),
        ("Wav2Vec2BertModel", {"position_embeddings_type": "relative_key"}, "relative positions"),
        ("ParakeetEncoder", SOUNDS, "relative positions"),
        ("BartForCausalLM", {"d_model": 32, "decoder_attention_heads": 2}, "cross-attention"),
        ("SegformerModel", STAGES, r"has stages with other numbers of heads .* = \[1, 2\]\)"),
        ("PixtralVisionModel", PICTURES, "makes a mask of its own"),
    ],
)  # fmt: skip
def test_what_no_mechanism_can_do_is_refused_at_once(
    name: str, further: dict[str, Any], told: str
) -> None:
    families = {"T5EncoderModel": "T5", "BartForCausalLM": "Bart"}
    family = families.get(name, name.removesuffix("Model"))
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **further})
    model = getattr(transformers, name)(config)
    with pytest.raises(InputError, match=told):
        huggingface.attach(model, "FullAttention")
    assert not huggingface.is_attached(model)


def sounds() -> tuple[Any, dict[str, Any]]:
    """A tiny Wav2Vec2, and a batch whose mask counts samples: many for each token."""
    model = make(
        "Wav2Vec2Model", conv_dim=(8,), conv_kernel=(20,), conv_stride=(20,),
        num_feat_extract_layers=1, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        num_attention_heads=4,
    )  # fmt: skip
    mask = torch.arange(800) < torch.tensor([[800], [400]])
    return model, {"input_values": torch.randn(2, 800) * mask, "attention_mask": mask.long()}


def pictures() -> tuple[Any, dict[str, Any]]:
    return make("ViTModel", **PICTURES), {"pixel_values": torch.randn(2, 3, 16, 16)}


@pytest.mark.parametrize(("given", "tokens"), [(sounds, [40, 20]), (pictures, [17, 17])])
def test_a_model_without_tokens_of_text_is_measured_and_taught(
    given: Any, tokens: list[int]
) -> None:
    model, batch = given()
    huggingface.attach(model, "LocalAttention", window=2)
    with torch.no_grad(), calls(model) as found:
        model(**batch)
    assert found[0].mask.sum(1).tolist() == tokens
    shares = [(3 * n - 2) / n for n in tokens]  # itself, and the tokens before and behind
    assert huggingface.keys_seen(model, batch) == pytest.approx(sum(shares) / sum(tokens))
    huggingface.attach(model, "NeuralClusteringAttention", num_clusters=8)
    assert len(huggingface.calibrate(model, [batch])) == 2
    assert 0 < huggingface.distill(model, [batch], steps=2).before <= 1
