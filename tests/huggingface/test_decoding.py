"""Decoders generate with the cache what they generate without it."""

import copy
import pickle

import pytest
import torch

from clusterformer import huggingface
from clusterformer.huggingface import dispatch

transformers = pytest.importorskip("transformers")

SMALL = {
    "FullAttention": {},
    "LocalAttention": {"window": 5},
    "NeuralClusteringAttention": {"num_clusters": 3, "chunk_size": 4, "local_heads": 1},
    "MultipoleAttention": {"num_clusters": 2, "block_size": 4},
    "ReformerAttention": {"num_hashes": 2},
    "QueryKeyClusteringAttention": {"num_clusters": 3, "chunk_size": 4, "dense_length": 5},
    "RoutingAttention": {"num_clusters": 3},
}
GREEDY = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}


def decoder(tiny, family: str, name: str, **further: object):
    model = tiny(family, "ForCausalLM", num_hidden_layers=2, max_position_embeddings=128, **further)
    return huggingface.attach(model, name, **SMALL[name])


@pytest.mark.parametrize(
    ("family", "name"),
    [(f, "NeuralClusteringAttention") for f in ("Llama", "Qwen3", "Mistral", "Gemma")]
    + [("Llama", name) for name in ("FullAttention", "RoutingAttention")]
    + [
        pytest.param("Llama", f"{name}Attention", marks=pytest.mark.slow)
        for name in ("Local", "Multipole", "Reformer")
    ],
)
@torch.no_grad()
def test_the_cache_changes_no_token(tiny, batch, family: str, name: str) -> None:
    model = decoder(tiny, family, name)
    inputs, _ = batch([13, 6, 1], 13, left=True)
    tokens = 64 if family == "Qwen3" else 10
    cached = model.generate(**inputs, max_new_tokens=tokens, use_cache=True, **GREEDY)
    whole = model.generate(**inputs, max_new_tokens=tokens, use_cache=False, **GREEDY)
    assert cached.shape == (3, 13 + tokens)
    assert torch.equal(cached, whole)
    single = inputs["input_ids"][1:2, -6:]
    alone = model.generate(single, max_new_tokens=tokens, **GREEDY)
    assert torch.equal(alone[0, 6:], cached[1, 13:])


@torch.no_grad()
@pytest.mark.parametrize("name", SMALL)
def test_a_prompt_without_padding_is_attended_once(tiny, name: str) -> None:
    model = decoder(tiny, "Llama", name)
    lengths = []
    for slot in dispatch.slots(model):
        forward = slot.core.forward
        slot.core.forward = lambda q, *args, forward=forward, **options: (
            lengths.append(q.shape[2]) or forward(q, *args, **options)
        )
    prompt = torch.randint(3, 50, (2, 13))
    alone = model.generate(prompt, max_new_tokens=5, use_cache=True, **GREEDY)
    assert lengths == [13, 13]  # in two layers
    assert torch.equal(alone, model.generate(prompt, max_new_tokens=5, use_cache=False, **GREEDY))
    with huggingface.groupings(model) as found:
        cached = model(prompt, use_cache=True).past_key_values
    with huggingface.groupings(model) as uncached:
        model(prompt, use_cache=False)
    assert [x is None for x in found] == [x is None for x in uncached]
    after = model(prompt[:, :1], past_key_values=cached).logits[:, -1]
    whole = model(torch.cat([prompt, prompt[:, :1]], 1), use_cache=False).logits[:, -1]
    assert torch.allclose(after, whole, atol=1e-5)


@torch.no_grad()
def test_layers_with_a_window_decode_beside_the_others(tiny, batch) -> None:
    model = decoder(tiny, "Mistral", "NeuralClusteringAttention", sliding_window=5)
    inputs, _ = batch([9, 4], 9, left=True)
    found = [
        model.generate(**inputs, max_new_tokens=12, use_cache=c, **GREEDY) for c in (True, False)
    ]
    assert torch.equal(*found)


@torch.no_grad()
def test_beams_take_their_caches_along(tiny, batch) -> None:
    model = decoder(tiny, "Llama", "NeuralClusteringAttention")
    inputs, _ = batch([9, 4], 9, left=True)
    options = {"num_beams": 3, "max_new_tokens": 10, **GREEDY}
    found = [model.generate(**inputs, use_cache=c, **options) for c in (True, False)]
    assert torch.equal(*found)


@torch.no_grad()
def test_steps_and_several_tokens_at_once_equal_the_whole_forward(tiny) -> None:
    model = decoder(tiny, "Llama", "NeuralClusteringAttention")
    tokens = torch.randint(3, 50, (2, 21))
    expected = model(tokens, use_cache=False).logits
    past = transformers.DynamicCache(config=model.config)
    model(tokens[:, :7], past_key_values=past)
    twin = copy.deepcopy(past)  # a prompt that is read once, and gone on from three times
    stored = pickle.dumps(past)
    for one in range(7, 12):
        logits = model(tokens[:, one : one + 1], past_key_values=past).logits
        torch.testing.assert_close(logits[:, 0], expected[:, one])
    for cache, start in ((past, 12), (twin, 7), (pickle.loads(stored), 7)):
        logits = model(tokens[:, start:], past_key_values=cache).logits
        torch.testing.assert_close(logits, expected[:, start:])


@pytest.mark.parametrize("window", [None, 5])
@torch.no_grad()
def test_a_prompt_may_be_read_in_parts(tiny, batch, window: int | None) -> None:
    """The padding of some rows is longer than the first part."""
    model = decoder(tiny, "Mistral", "NeuralClusteringAttention", sliding_window=window)
    inputs, _ = batch([13, 6, 7, 1], 13, left=True)
    options = {"max_new_tokens": 8, **GREEDY}
    parts = model.generate(**inputs, prefill_chunk_size=4, **options)
    assert torch.equal(parts, model.generate(**inputs, use_cache=False, **options))


@torch.no_grad()
def test_what_the_cache_cannot_do_is_refused(tiny) -> None:
    model = decoder(tiny, "Llama", "FullAttention")
    tokens = torch.randint(3, 50, (1, 9))
    with pytest.raises(ValueError, match="beside a DynamicCache only, got StaticLayer"):
        model(tokens, past_key_values=transformers.StaticCache(model.config, max_cache_len=16))
    past = transformers.DynamicCache(config=model.config)
    model(tokens, past_key_values=past)
    with pytest.raises(ValueError, match="cannot forget tokens"):
        past.crop(-2)
    huggingface.attach(model, "LocalAttention", window=3)
    own = transformers.DynamicCache(config=model.config)
    huggingface.detach(model)
    model(tokens, past_key_values=own)
    huggingface.attach(model, "LocalAttention", window=3)
    with pytest.raises(ValueError, match="9 tokens that this mechanism has not seen"):
        model(tokens[:, :1], past_key_values=own)


@torch.no_grad()
def test_assisted_decoding_is_refused_before_the_first_token(tiny) -> None:
    model = decoder(tiny, "Llama", "FullAttention")
    model.register_forward_pre_hook(lambda *_: pytest.fail("began"))
    tokens = torch.randint(3, 50, (1, 9))
    for assisted in (
        {"assistant_model": tiny("Llama", "ForCausalLM")},
        {"prompt_lookup_num_tokens": 2},
    ):
        with pytest.raises(ValueError, match="assisted generation is not supported"):
            model.generate(tokens, max_new_tokens=3, **assisted, **GREEDY)
    plain = huggingface.detach(decoder(tiny, "Llama", "FullAttention"))
    passed = decoder(tiny, "Llama", "FullAttention")
    passed.set_attn_implementation("sdpa")
    for model in (plain, passed):
        assert model.generate(tokens, max_new_tokens=3, **assisted, **GREEDY).shape == (1, 12)


@pytest.mark.parametrize("window", [None, 5])
@torch.no_grad()
def test_tokens_of_the_cache_cannot_become_padding(tiny, batch, window: int | None) -> None:
    """As where a row ended early, and all rows of the batch go on with another turn."""
    model = decoder(tiny, "Mistral", "FullAttention", sliding_window=window)
    inputs, mask = batch([9, 4], 9, left=True)
    for early in (True, False):  # before the mechanism's own cache is filled, and after
        past = transformers.DynamicCache(config=model.config)
        model(**inputs, past_key_values=past)
        order = torch.tensor([1, 0])
        past.reorder_cache(order)
        turn, seen = torch.full((2, 3), 7), mask[order]
        for _ in range(0 if early else 2):
            seen = torch.cat([seen, mask.new_ones(2, 3)], 1)
            model(turn, attention_mask=seen.long(), past_key_values=past)
        seen = torch.cat([seen, mask.new_ones(2, 3)], 1)
        seen[0, -4] = False  # the last token before this turn
        with pytest.raises(ValueError, match="padding after the first tokens"):
            model(turn, attention_mask=seen.long(), past_key_values=past)
