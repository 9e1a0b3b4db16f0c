"""Queries, keys and values as a trained model makes them of a text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clusterformer.attention import AttentionCore, FullAttention, approximate
from clusterformer.errors import InputError
from clusterformer.models.language_model import LanguageModel


class Inputs(NamedTuple):
    """What a mechanism mixed: q, k, v, (B, H, N, D) each."""

    q: Tensor
    k: Tensor
    v: Tensor


class _Tokens(NamedTuple):
    tokens: Tensor
    mask: Tensor


@torch.no_grad()
def record(model: nn.Module, run: Callable[[], object]) -> list[Inputs]:
    """What each mechanism inside `model` gets while `run` runs the model, layer by layer."""
    found: list[Inputs] = []

    def keep(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        found.append(Inputs(*(x.contiguous() for x in given)))

    cores = [part for part in model.modules() if isinstance(part, AttentionCore)]
    hooks = [core.register_forward_pre_hook(keep) for core in cores]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return found


def of_encoder(folder: Path, text: str, length: int, texts: int) -> list[Inputs]:
    """Of a pretrained Hugging Face encoder, on `texts` stretches of `length` tokens."""
    from transformers import AutoModel, AutoTokenizer

    model = approximate(AutoModel.from_pretrained(folder).eval(), FullAttention)
    if length > (most := getattr(model.config, "max_position_embeddings", length)):
        raise InputError(f"--length {length}: {folder.name} has positions for {most} tokens")
    encoded = AutoTokenizer.from_pretrained(folder)(
        text, truncation=True, max_length=length, return_overflowing_tokens=True
    )
    rows = [row for row in encoded["input_ids"] if len(row) == length]
    tokens = _rows(torch.tensor(rows).flatten(), length, texts)
    return record(model, lambda: model(input_ids=tokens))


def of_language_model(
    model: LanguageModel, tokens: Tensor, length: int, texts: int
) -> list[Inputs]:
    """Of a language model trained here, on `texts` stretches of `length` of the tokens."""
    rows = _rows(tokens, length, texts)
    batch = _Tokens(rows, torch.ones_like(rows, dtype=torch.bool))
    return record(model, lambda: model(batch))


def relative_error(values: Tensor, exact: Tensor) -> float:
    """|values - exact|^2 / |exact|^2."""
    difference = (values.float() - exact.float()).square().sum()
    return float(difference / exact.float().square().sum())


def _rows(tokens: Tensor, length: int, texts: int) -> Tensor:
    if len(tokens) < texts * length:
        raise InputError(f"the text has {len(tokens)} tokens, not {texts} times {length}")
    return tokens[: texts * length].long().view(texts, length)
