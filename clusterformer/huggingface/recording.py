"""Run a model in evaluation, without a cache, and record what its mechanisms group.

B batch   N tokens
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

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


class Call(NamedTuple):
    """One use of a mechanism.

    Attributes:
        core: Mechanism.
        grouping: What it grouped; None if it groups nothing.
        mask: (B, N), True at real tokens. The model's own mask may count other things, such as the
            samples of a sound.
    """

    core: AttentionCore
    grouping: Grouping | None
    mask: Tensor


@contextmanager
def calls(model: nn.Module) -> Iterator[list[Call]]:
    """Record each use of a mechanism while the model runs; layers may share one, as in ALBERT.

    Yields:
        A list that each forward pass extends, by one entry a layer.
    """
    found: list[Call] = []

    def record(core: AttentionCore, grouping: Grouping | None, mask: Tensor) -> None:
        found.append(Call(core, grouping, mask))

    with _recording(model, record):
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
    with _recording(model, lambda _core, grouping, _mask: found.append(grouping)):
        yield found


@contextmanager
def _recording(
    model: nn.Module, record: Callable[[AttentionCore, Grouping | None, Tensor], None]
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
