"""Batches of a model of transformers, from texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from clusterformer.errors import InputError


def to_batches(
    model: Any, texts: Any, tokenizer: Any, max_length: int, batch_size: int
) -> Iterator[dict[str, Tensor]]:
    """Make batches of texts, on the model's device; batches pass, without their labels.

    Raises:
        InputError: if one text is given for many, or texts without a tokenizer.
    """
    if isinstance(texts, str):
        raise InputError("texts must be a list of texts, got one text")
    first = next(iter(texts), None) if isinstance(texts, Sequence) else None
    if not isinstance(first, str):
        for batch in texts:
            yield {key: x.to(model.device) for key, x in batch.items() if key != "labels"}
        return
    if tokenizer is None:
        raise InputError("texts need their tokenizer; give it, or batches of token ids")
    for at in range(0, len(texts), batch_size):
        yield dict(
            tokenizer(
                list(texts[at : at + batch_size]),
                truncation=True, max_length=max_length, padding=True, return_tensors="pt",
            ).to(model.device)
        )  # fmt: skip
