"""Another attention in a pretrained Hugging Face encoder, without training it again.

B batch   H heads   N queries   M keys   D head width
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from torch import Tensor, nn

from clusterformer.attention.base import AttentionCore

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_numbers = count()


def approximate(
    model: PreTrainedModel, core: Callable[[int, int], AttentionCore]
) -> PreTrainedModel:
    """Replace the attention of a BERT-like encoder by a mechanism (Vyas et al., 2020, section 4.3).

    It works on every model that takes its attention from transformers' `AttentionInterface`.

    Examples:
        >>> model = AutoModel.from_pretrained(folder)
        >>> approximate(model, partial(ImprovedClusteredAttention, num_clusters=25))
        >>> model.set_attn_implementation("sdpa")  # back to its own

    Args:
        model: Encoder, changed in place; its weights do not change.
        core: Mechanism, called with the model's width and number of heads. It must have no weights
            of its own, and must be bidirectional.

    Returns:
        The same model.

    Raises:
        ValueError: if the mechanism has weights, which are untrained, or is causal.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    config = model.config
    mechanism = core(config.hidden_size, config.num_attention_heads)
    kind = type(mechanism).__name__
    if any(True for _ in mechanism.parameters()):
        raise ValueError(f"{kind} has weights of its own, which are untrained in this model")
    if mechanism.causal:
        raise ValueError(f"an encoder needs causal=False, got causal={mechanism.causal!r}")
    name = f"clusterformer-{next(_numbers)}-{kind}"

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **_: object,
    ) -> tuple[Tensor, None]:
        """Attend from (B, H, N, D) to (B, N, H, D), in the signature of the interface."""
        if getattr(module, "is_causal", False):
            raise ValueError(f"{type(module).__name__} is causal; approximate() is for encoders")
        width = query.shape[-1]
        if scaling is not None:
            query = query * (scaling * width**0.5)
        mask = None if attention_mask is None else attention_mask[:, 0, 0]  # every row is the same
        mixed, _grouping = mechanism(
            query,
            key,
            value,
            hidden=query.transpose(1, 2).flatten(2),
            query_mask=mask if query.shape[2] == key.shape[2] else None,
            key_mask=mask,
        )
        return mixed.transpose(1, 2).contiguous(), None

    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, sdpa_mask)
    model.attention_mechanism = mechanism  # its buffers move with the model
    model.set_attn_implementation(name)
    return model
