"""Sequences that several processes share, each of which computes some heads of all tokens.

DeepSpeed's Ulysses (Jacobs et al., 2023) exchanges tokens for heads around an attention function
that it finds by name among those of transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from clusterformer.attention import (
    AttentionCore,
    FullAttention,
    LocalAttention,
    NeuralClusteringAttention,
)
from clusterformer.errors import InputError
from clusterformer.huggingface.dispatch import slots
from clusterformer.sequence_parallel import SequenceGroup

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def share_heads(model: PreTrainedModel, group: dist.ProcessGroup | None = None) -> None:
    """Let each process compute its heads of a sequence whose tokens several processes share.

    DeepSpeed's Ulysses calls an attention function for the heads of this process and all tokens,
    but the input of the layer, by which tokens are clustered, has those of this process alone. It
    is collected from all. Padding is not known there, so it stands behind a causal text.

    Examples:
        >>> huggingface.attach(model, "NeuralClusteringAttention", num_clusters=64)
        >>> mpu = UlyssesSPAttentionHF.register_with_transformers(
        ...     model, core_attn_implementation="clusterformer", sequence_parallel_size=8,
        ...     micro_batch_size=1)
        >>> huggingface.share_heads(model, mpu.get_sequence_parallel_group())

    Args:
        model: Model with a mechanism attached.
        group: The processes that share a sequence; None for all.

    Raises:
        ValueError: if no mechanism is attached, its heads are not alike, or the processes do not
            divide them. Nothing has changed then.
    """
    attached = slots(model)
    if not attached:
        raise InputError(f"{type(model).__name__} has no mechanism; attach one first")
    shared = SequenceGroup(group)
    for slot in attached:
        _check(slot.core, shared.size)
    for slot in attached:
        slot.group = shared


def _check(core: AttentionCore, size: int) -> None:
    name = type(core).__name__
    if type(core) not in (FullAttention, LocalAttention, NeuralClusteringAttention):
        raise InputError(
            "shared heads need NeuralClusteringAttention, FullAttention or LocalAttention, "
            f"got {name}"
        )
    if isinstance(core, NeuralClusteringAttention):
        for option, needed in (("local_heads", 0), ("exploration", 0), ("num_clusterings", 1)):
            if (value := getattr(core, option)) != needed:
                raise InputError(f"shared heads need {option}={needed}, got {value}")
    if core.num_heads % size:
        raise InputError(
            f"the number of processes must divide num_heads, got {size} processes with "
            f"num_heads = {core.num_heads}"
        )
