"""Tiny random models of transformers, made from their configurations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

ENCODERS = ("Bert", "Roberta", "DistilBert", "ModernBert")
DECODERS = ("Llama", "Qwen3", "Mistral", "Gemma")
SIZES = {
    "vocab_size": 50, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 64, "initializer_range": 0.15,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
FURTHER: dict[str, dict[str, Any]] = {
    "DistilBert": {"dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 48},
    "ModernBert": {"global_attn_every_n_layers": 2, "local_attention": 8, "cls_token_id": 1,
                   "sep_token_id": 2},
    "Llama": {"num_key_value_heads": 2},
    "Qwen3": {"num_key_value_heads": 2, "head_dim": 24},
    "Mistral": {"num_key_value_heads": 1, "sliding_window": None},
    "Gemma": {"num_key_value_heads": 1, "head_dim": 24},
}  # fmt: skip


def make(family: str, head: str = "Model", **further: Any) -> Any:
    """A random model such as `BertModel` of 3 layers, width 64 and 4 heads, in evaluation mode."""
    sizes = {**SIZES, **FURTHER.get(family, {}), **further}
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{family}Config")(**sizes)
    return getattr(transformers, f"{family}{head}")(config).eval()


@pytest.fixture
def tiny() -> Callable[..., Any]:
    return make


def texts(lengths: list[int], longest: int, left: bool = False) -> tuple[dict[str, Any], Any]:
    """Different random tokens, padded on the right or the left, and the mask of real tokens."""
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    mask = mask.flip(1) if left else mask
    tokens = 3 + torch.rand(len(mask), 47).argsort(1)[:, :longest]
    tokens = tokens.masked_fill(~mask, 0)
    return {"input_ids": tokens, "attention_mask": mask.long()}, mask


@pytest.fixture
def batch() -> Callable[..., Any]:
    return texts
