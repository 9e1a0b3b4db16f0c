"""Share of its text that a token of a converted model sees.

B batch   N tokens   E model width
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterformer.attention import AttentionCore, Grouping
from clusterformer.huggingface.recording import calls, evaluating, without_cache

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def keys_seen(model: PreTrainedModel, batch: dict[str, Tensor]) -> float | None:
    """Compute the share of its text that a token sees in evaluation, mean over tokens and layers.

    Args:
        model: Model with a mechanism attached, or without one.
        batch: Texts as the model takes them: `input_ids` (B, N) or `inputs_embeds` (B, N, E), and
            `attention_mask` (B, N) or none.

    Returns:
        The share; 1 in the model's own attention, and None where a mechanism does not say.
    """
    with evaluating(model), calls(model) as found:
        model.base_model(**batch, **without_cache(model.base_model))
    mask = batch.get("attention_mask")
    if mask is None:
        given = next(batch[name] for name in ("input_ids", "inputs_embeds") if name in batch)
        mask = torch.ones(given.shape[:2], device=given.device)
    return share_seen(found, mask.bool())


def share_seen(
    found: Sequence[tuple[AttentionCore, Grouping | None]], mask: Tensor
) -> float | None:
    """Compute the same from the `calls` of a forward pass; mask (B, N), True at real tokens."""
    shares = []
    for core, grouping in found:
        seen = core.keys_seen(grouping, mask)
        if seen is None:
            return None
        shares.append(float(seen[mask].mean()))
    return sum(shares) / len(shares) if shares else 1.0
