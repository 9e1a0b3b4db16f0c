"""More context than a model was trained with."""

import pytest
import torch

from clusterformer import huggingface

pytest.importorskip("transformers")


@pytest.mark.parametrize("family", ["Bert", "Roberta", "DistilBert"])
@torch.no_grad()
def test_learned_positions_are_repeated(tiny, tmp_path, family: str) -> None:
    offset = 1 if family == "Roberta" else 0  # behind its padding index, 0
    model = tiny(family, max_position_embeddings=32 + offset)
    tokens = torch.randint(3, 50, (2, 32))
    expected = model(tokens).last_hidden_state
    assert huggingface.extend_positions(model, 80) is model
    assert torch.equal(model(tokens).last_hidden_state, expected)
    table = model.embeddings.position_embeddings.weight[offset:]
    assert table.shape[0] == 80
    assert torch.equal(table[32:64], table[:32])
    assert torch.equal(table[64:], table[:16])
    huggingface.attach(model, "NeuralClusteringAttention", num_clusters=3)
    long = torch.randint(3, 50, (2, 80))
    expected = model(long).last_hidden_state
    model.save_pretrained(tmp_path)
    again = huggingface.load(tmp_path)
    assert again.config.max_position_embeddings == 80 + offset
    assert torch.equal(again(long).last_hidden_state, expected)


@pytest.mark.parametrize("family", ["Llama", "ModernBert"])
@pytest.mark.parametrize("scaling", ["yarn", "linear"])
@torch.no_grad()
def test_rotary_positions_are_rescaled(tiny, tmp_path, family: str, scaling: str) -> None:
    model = tiny(family, max_position_embeddings=32)
    tokens = torch.randint(3, 50, (2, 100))
    before = model(tokens).last_hidden_state
    huggingface.extend_positions(model, 128, scaling=scaling)
    found = model(tokens).last_hidden_state
    assert not torch.allclose(found, before, atol=1e-3)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert again.config.max_position_embeddings == 128
    assert torch.equal(again(tokens).last_hidden_state, found)


@torch.no_grad()
def test_linear_scaling_divides_every_position(tiny) -> None:
    model = tiny("Llama", max_position_embeddings=32)
    tokens, positions = torch.randint(3, 50, (1, 20)), torch.arange(20)[None]
    expected = model(tokens, position_ids=positions).last_hidden_state
    huggingface.extend_positions(model, 128, scaling="linear")
    found = model(tokens, position_ids=4 * positions).last_hidden_state
    torch.testing.assert_close(found, expected)


def test_dynamic_positions_are_refused_and_stay(tiny) -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    model = tiny("Llama", max_position_embeddings=32, rope_parameters=dynamic)
    with pytest.raises(ValueError, match="extend themselves"):
        huggingface.extend_positions(model, 128)
    assert model.config.max_position_embeddings == 32
    assert model.config.rope_parameters["factor"] == 2.0


@pytest.mark.parametrize("scaling", ["yarn", "linear"])
def test_positions_that_could_not_be_saved_are_refused_and_stay(tiny, scaling: str) -> None:
    model = tiny("Phi3", num_key_value_heads=2)
    with pytest.raises(ValueError, match=f"Phi3Model cannot be scaled by '{scaling}': .*longrope"):
        huggingface.extend_positions(model, 128, scaling=scaling)
    assert model.config.max_position_embeddings == 64
    assert model.config.rope_parameters["rope_type"] == "default"


def test_a_scaling_that_is_there_is_extended_and_not_replaced(tiny) -> None:
    own = {"rope_type": "llama3", "factor": 2.0, "rope_theta": 1e4, "low_freq_factor": 1.0}
    own |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    model = tiny("Llama", rope_parameters=own)
    with pytest.raises(ValueError, match="cannot replace that of the model, 'llama3'; leave it"):
        huggingface.extend_positions(model, 128, scaling="linear")
    assert model.config.rope_parameters["factor"] == 2
    huggingface.extend_positions(model, 128)
    assert model.config.rope_parameters["rope_type"] == "llama3"
    assert model.config.rope_parameters["factor"] == 4


def test_fewer_or_unknown_positions_are_refused(tiny) -> None:
    with pytest.raises(ValueError, match="positions must be above 64, which the model has, got 64"):
        huggingface.extend_positions(tiny("Bert"), 64)
    with pytest.raises(ValueError, match="above 64, which the model has, got '128'"):
        huggingface.extend_positions(tiny("Bert"), "128")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scaling must be"):
        huggingface.extend_positions(tiny("Llama"), 128, scaling="ntk")  # type: ignore[arg-type]


def test_learned_positions_cannot_be_scaled_and_stay(tiny) -> None:
    model = tiny("Bert", max_position_embeddings=32)
    with pytest.raises(ValueError, match="scaling='linear' is for rotary positions; those of Bert"):
        huggingface.extend_positions(model, 80, scaling="linear")
    assert model.embeddings.position_embeddings.num_embeddings == 32
    assert model.config.max_position_embeddings == 32


def test_rotary_positions_are_rescaled_by_yarn_unless_told(tiny) -> None:
    found, expected = (tiny("Llama", max_position_embeddings=32) for _ in range(2))
    huggingface.extend_positions(found, 128)
    huggingface.extend_positions(expected, 128, scaling="yarn")
    assert found.config.rope_parameters == expected.config.rope_parameters
    assert found.config.rope_parameters["rope_type"] == "yarn"
