"""Run a model in evaluation, without a cache, and record what its mechanisms group."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from clusterformer.attention import AttentionCore, Grouping
from clusterformer.huggingface.dispatch import slots


def without_cache(model: nn.Module) -> dict[str, bool]:
    """Return options of `model.forward` by which a decoder fills no cache."""
    taken = inspect.signature(model.forward).parameters
    return {"use_cache": False} if "use_cache" in taken else {}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model on evaluation, and each part back to what it was at the end, whatever happens."""
    trained = [part for part in model.modules() if part.training]
    model.eval()
    try:
        yield
    finally:
        model.eval()
        for part in trained:
            part.training = True


@contextmanager
def calls(model: nn.Module) -> Iterator[list[tuple[AttentionCore, Grouping | None]]]:
    """Record each use of a mechanism while the model runs; layers may share one, as in ALBERT.

    Yields:
        A list that each forward pass extends: the mechanism of each layer, and its grouping.
    """
    found: list[tuple[AttentionCore, Grouping | None]] = []
    with _recording(model, lambda core, grouping: found.append((core, grouping))):
        yield found


@contextmanager
def groupings(model: nn.Module) -> Iterator[list[Grouping | None]]:
    """Record what each layer groups while the model runs.

    Examples:
        >>> with huggingface.groupings(model) as found:
        ...     model(**batch)
        >>> found[0].assignment  # of the first layer

    Yields:
        A list that each forward pass extends, by one entry a layer: its grouping, or None if the
        mechanism groups nothing.
    """
    found: list[Grouping | None] = []
    with _recording(model, lambda _, grouping: found.append(grouping)):
        yield found


@contextmanager
def _recording(
    model: nn.Module, record: Callable[[AttentionCore, Grouping | None], None]
) -> Iterator[None]:
    attached = slots(model)
    for slot in attached:
        slot.records.append(record)
    try:
        yield
    finally:
        for slot in attached:
            if torch.compiler.is_compiling():  # which compares no functions; ours is the last
                slot.records.pop()
            else:
                slot.records.remove(record)
