"""Batches of a model of transformers, from texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

from torch import Tensor

from clusterformer.errors import InputError
from clusterformer.huggingface.positions import num_learned


def require_many(texts: Any) -> None:
    """Refuse one text or one batch in the place of a list."""
    if isinstance(texts, str | Mapping):
        got = "one text" if isinstance(texts, str) else f"a {type(texts).__name__}"
        raise InputError(f"texts must be a list of texts or of batches, got {got}")


def to_batches(
    model: Any, texts: Any, tokenizer: Any, max_length: int, batch_size: int
) -> Iterator[dict[str, Tensor]]:
    """Make batches of texts, on the model's device; of batches copies, without their labels.

    Raises:
        InputError: if one text is given for many, texts without a tokenizer, a text longer than
            learned positions reach, or anything else.
    """
    require_many(texts)
    rows = iter(texts)
    for first in rows:  # look at it
        rows = chain([first], rows)
        break
    else:
        return
    if isinstance(first, Mapping):
        for batch in rows:
            given = {key: x for key, x in batch.items() if key != "labels"}
            # a CTRL multiplies `inputs_embeds` in place
            yield {key: x.to(model.device, copy=True) for key, x in given.items()}
        return
    if tokenizer is None:
        raise InputError("texts need their tokenizer; give it, or batches of token ids")
    done, limit = 0, num_learned(model)
    while part := list(islice(rows, batch_size)):
        for number, text in enumerate(part, start=done + 1):
            if not isinstance(text, str):
                raise InputError(f"text {number}: got {text!r:.80}, allowed are texts")
        batch = tokenizer(
            part, truncation=True, max_length=max_length,
            padding=True, padding_side="right",  # a text's positions begin at 0 then
            return_tensors="pt",
        ).to(model.device)  # fmt: skip
        if limit is not None and (length := batch["input_ids"].shape[1]) > limit:
            raise InputError(
                f"a text of {length} tokens is longer than the {limit} learned positions of the "
                f"model; give max_length={limit}, or extend_positions"
            )
        yield dict(batch)
        done += len(part)
