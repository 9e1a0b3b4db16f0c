"""Mechanisms in models of transformers on a device other than the CPU; see test_devices.py."""

from typing import Any

import pytest
import torch
from pretended_tensor import DEVICE

from clusterformer import huggingface

pytestmark = pytest.mark.slow

SIZES: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
NAMES = ("FullAttention", "NeuralClusteringAttention", "RoutingAttention", "MultipoleAttention")


def texts(left: bool = False) -> dict[str, torch.Tensor]:
    mask = torch.arange(13) < torch.tensor([13, 6, 1])[:, None]
    mask = mask.flip(1) if left else mask
    tokens = torch.randint(3, 50, mask.shape).masked_fill(~mask, 0)
    return {"input_ids": tokens.to(DEVICE), "attention_mask": mask.long().to(DEVICE)}


@pytest.mark.parametrize("name", NAMES)
def test_an_encoder_trains_and_is_calibrated(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.BertModel(transformers.BertConfig(**SIZES)).to(DEVICE)
    huggingface.attach(model, name)
    assert {tensor.device for tensor in model.state_dict().values()} == {DEVICE}
    model.train()(**texts()).last_hidden_state.sum().backward()
    model.eval()(**texts())
    if name.startswith("Neural"):
        assert huggingface.calibrate(model, [texts(), texts()], steps=2)
    huggingface.distill(model, [texts(), texts()], steps=2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 2}, {"do_sample": True}, {"use_cache": False}]
)
def test_a_decoder_generates(name: str, options: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, eos_token_id=None)
    model = transformers.LlamaForCausalLM(config).eval().to(DEVICE)
    huggingface.attach(model, name)
    found = model.generate(**texts(left=True), max_new_tokens=6, **{"do_sample": False, **options})
    assert found.shape == (3, 19)
    assert found.device == DEVICE
