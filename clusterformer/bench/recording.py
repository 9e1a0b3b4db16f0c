"""Queries, keys and values that a trained model computes for a text.

B batch   H heads   N tokens   D head width
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clusterformer.attention import AttentionCore, FullAttention, LocalAttention
from clusterformer.attention.local_heads import LocalHeads
from clusterformer.data.pretrained import read_model
from clusterformer.errors import InputError
from clusterformer.huggingface import attach
from clusterformer.models.language_model import LanguageModel


class Inputs(NamedTuple):
    """Inputs of a mechanism: q, k, v, (B, H, N, D) each."""

    q: Tensor
    k: Tensor
    v: Tensor


class _Tokens(NamedTuple):
    tokens: Tensor
    mask: Tensor


@torch.no_grad()
def record(model: nn.Module, run: Callable[[], object]) -> list[Inputs]:
    """Record the inputs of each mechanism inside `model` while `run` runs it, layer by layer.

    Heads that have a window are left out: far keys had no part in their training. So are layers
    that have no others.
    """
    found: list[Inputs] = []

    def keep(core: nn.Module, given: tuple[Tensor, ...]) -> None:
        near = core.local_heads if isinstance(core, LocalHeads) else 0
        if near < given[0].shape[1]:
            found.append(Inputs(*(x[:, near:].contiguous() for x in given)))

    cores = [part for part in model.modules() if isinstance(part, AttentionCore)]
    hooks = [
        core.register_forward_pre_hook(keep)
        for core in cores
        if not isinstance(core, LocalAttention)
    ]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return found


def record_encoder(folder: Path, text: str, length: int, texts: int) -> list[Inputs]:
    """Record a pretrained Hugging Face encoder on parts of a text.

    Args:
        folder: Directory of the model.
        text: The text.
        length: N, tokens of each part.
        texts: B, number of parts.

    Raises:
        InputError: if the folder holds no model with its own attention, the model has fewer
            positions than `length`, or the text is too short.
    """
    whole, tokenizer = read_model(str(folder), folder)
    base: Any = whole.base_model  # transformers types it as any module
    model = attach(base, FullAttention)
    if length > (positions := getattr(model.config, "max_position_embeddings", length)):
        raise InputError(f"--length {length}: {folder.name} has positions for {positions} tokens")
    encoded = tokenizer(text, truncation=True, max_length=length, return_overflowing_tokens=True)
    rows = [row for row in encoded["input_ids"] if len(row) == length]
    tokens = _rows(torch.tensor(rows).flatten(), length, texts)
    return record(model, lambda: model(input_ids=tokens))


def record_language_model(
    model: LanguageModel, tokens: Tensor, length: int, texts: int
) -> list[Inputs]:
    """Record a language model of ours on `texts` parts of `length` tokens each.

    Raises:
        InputError: if there are too few tokens.
    """
    rows = _rows(tokens, length, texts)
    batch = _Tokens(rows, torch.ones_like(rows, dtype=torch.bool))
    return record(model, lambda: model(batch))


def relative_error(values: Tensor, exact: Tensor) -> float:
    """Compute |values - exact|^2 / |exact|^2."""
    difference = (values.float() - exact.float()).square().sum()
    return float(difference / exact.float().square().sum())


def _rows(tokens: Tensor, length: int, texts: int) -> Tensor:
    if len(tokens) < texts * length:
        raise InputError(f"the text has {len(tokens)} tokens, not {texts} times {length}")
    return tokens[: texts * length].long().view(texts, length)
