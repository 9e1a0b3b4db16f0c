"""Self-attention layers of a transformers model: where they are, and their sizes.

H heads   D head width   E model width
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from clusterformer.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Layer(NamedTuple):
    """A self-attention layer.

    Attributes:
        name: Its name in the model.
        module: The module that calls the attention function.
        hidden_width: E, width of its input.
        num_heads: H, heads of the queries.
        head_width: D; H * D may differ from E.
        causal: True if tokens attend to earlier ones only.
        window: Distance from which on tokens are out of sight in this model's own sliding window;
            None without one.
    """

    name: str
    module: nn.Module
    hidden_width: int
    num_heads: int
    head_width: int
    causal: bool
    window: int | None


def attention_layers(model: PreTrainedModel) -> list[Layer]:
    """Find the self-attention layers of a model.

    Raises:
        ValueError: if there are none, or the model has what no mechanism can replace.
    """
    _refuse_unsupported(model)
    called = _called_causal(model)
    layers = [_describe(name, module, model, called) for name, module in _dispatching(model)]
    if not layers:
        raise InputError(f"{type(model).__name__} has no attention layer of AttentionInterface")
    return layers


def _dispatching(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        if "ALL_ATTENTION_FUNCTIONS" in _source(type(module)):
            yield name, module


def _source(kind: type[nn.Module]) -> str:
    """Source of the forward pass; "" where there is none."""
    try:
        return inspect.getsource(kind.forward)
    except (OSError, TypeError):
        return ""


def _called_causal(model: nn.Module) -> bool:
    """Tell whether a model calls its layers with is_causal=True, as CLIP's for texts do."""
    return any("is_causal=True" in _source(kind) for kind in {type(m) for m in model.modules()})


_OWN_MASK = re.compile(
    r'extended_attention_mask = |allow_is_causal_skip(": |=)False|generate_block_attention_mask'
)
"""Source of a forward pass that makes the mask, or needs that of all pairs to add to it."""


def _refuse_unsupported(model: PreTrainedModel) -> None:
    config, kind = model.config, type(model).__name__
    if not model._can_set_attn_implementation():
        raise InputError(
            f"{kind} does not take its attention from transformers' AttentionInterface"
        )
    if config.is_encoder_decoder or getattr(config, "add_cross_attention", False):
        raise InputError(
            f"{kind} has cross-attention, or is part of a model that has; only encoders and "
            "decoders are supported"
        )
    # that of ESM's folding model is None in an encoder
    models = [name for name in config.sub_configs if getattr(config, name, None) is not None]
    if models:
        raise InputError(f"{kind} consists of several models ({', '.join(models)}); give one")
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise InputError(
            f"{kind} caps its logits (attn_logit_softcapping = {config.attn_logit_softcapping}), "
            "which no mechanism does; set it to None to train without"
        )
    if getattr(config, "use_bidirectional_attention", False) and hasattr(config, "sliding_window"):
        raise InputError(f"{kind} is bidirectional within its own masks, which no mechanism has")
    if getattr(config, "num_kv_shared_layers", 0):
        raise InputError(f"{kind} has layers that share keys and values, which no mechanism can")
    for name, module in model.named_modules():
        if getattr(module, "sinks", None) is not None:
            raise InputError(f"{kind} has attention sinks ({name}.sinks), which no mechanism has")
        if _has_relative_bias(module):
            raise InputError(
                f"{kind} has a bias of relative positions ({name}), which no mechanism has"
            )
        if hasattr(module, "encoder_attn"):
            raise InputError(f"{kind} has cross-attention ({name}.encoder_attn)")
        if getattr(module, "v_head_dim", None) != getattr(module, "qk_head_dim", None):
            raise InputError(f"{kind} has values of another width than keys ({name})")
    for part in {type(module) for module in model.modules()}:
        source = _source(part)
        if source.count(" attention_interface(") > 1:
            raise InputError(f"{kind} attends twice a layer ({part.__name__}), as no mechanism can")
        if _OWN_MASK.search(source):
            raise InputError(f"{kind} makes a mask of its own, which no mechanism takes")


def _has_relative_bias(module: nn.Module) -> bool:
    """Tell whether a module adds a bias of relative positions to the scores of attention.

    T5's names it in a flag, BEiT's and Swin's have a table of it, Wav2Vec2-BERT's name its kind,
    and Parakeet's compute it from keys.
    """
    return (
        bool(getattr(module, "has_relative_attention_bias", False))
        or getattr(module, "position_embeddings_type", None) in ("relative", "relative_key")
        or hasattr(module, "relative_position_bias_table")
        or hasattr(module, "relative_k_proj")
    )


def _describe(name: str, module: nn.Module, model: PreTrainedModel, called: bool) -> Layer:
    config: Any = getattr(module, "config", model.config)
    heads = config.num_attention_heads
    if not isinstance(heads, int):  # Segformer's stages, which also make keys of fewer tokens
        raise InputError(
            f"{type(model).__name__} has stages with other numbers of heads "
            f"(num_attention_heads = {heads}); only models of equal layers are supported"
        )
    for attribute in ("head_dim", "attention_head_size"):
        width = getattr(module, attribute, None)
        if width is not None:
            break
    else:
        width = config.hidden_size // heads
    causal = bool(getattr(module, "is_causal", False)) or called
    if getattr(config, "is_causal", True) is False:  # a decoder made bidirectional
        causal = False
    window = _window(module, config, causal)
    return Layer(name, module, _input_width(module, config), heads, width, causal, window)


def _input_width(module: nn.Module, config: Any) -> int:
    """Find the width of a layer's input by the projection of its queries.

    MobileBERT's layers read a narrower input than the model's hidden states.
    """
    for name, part in module.named_children():
        width = getattr(part, "in_features", None)
        if name.startswith("q") and isinstance(width, int):
            return width
    return int(config.hidden_size)


def _window(module: nn.Module, config: Any, causal: bool) -> int | None:
    """Find the first distance out of sight: a causal window counts the token itself."""
    kinds, index = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    if kinds is not None and index is not None and kinds[index] != "sliding_attention":
        if kinds[index] != "full_attention":
            raise InputError(f"layers of type {kinds[index]!r} are not supported")
        if 'self.config, "sliding_window"' not in _source(type(module)):  # as MiniMax's do
            return None
    # Where neither has it, it is left over in a config.json, unread.
    read = hasattr(type(config), "sliding_window") or hasattr(module, "sliding_window")
    window = config.sliding_window if read else None
    if window is None or getattr(config, "use_sliding_window", True) is False:
        return None
    return window if causal else window + 1
