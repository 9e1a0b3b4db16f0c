"""Share of its text that a token of a converted model sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterformer.huggingface.recording import Call, calls, evaluating, without_cache

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def keys_seen(model: PreTrainedModel, batch: dict[str, Tensor]) -> float | None:
    """Compute the share of its text that a token sees in evaluation, mean over tokens and layers.

    Args:
        model: Model with a mechanism attached, or without one.
        batch: Texts, pictures or sounds as the model takes them.

    Returns:
        The share; 1 in the model's own attention, and None where a mechanism does not say.
    """
    with evaluating(model), calls(model) as found:
        model.base_model(**batch, **without_cache(model.base_model))
    return share_seen(found)


def share_seen(found: Sequence[Call]) -> float | None:
    """Compute the same from the `calls` of a forward pass."""
    shares = []
    for core, grouping, mask in found:
        seen = core.keys_seen(grouping, mask)
        if seen is None:
            return None
        shares.append(float(seen[mask].mean()))
    return sum(shares) / len(shares) if shares else 1.0
