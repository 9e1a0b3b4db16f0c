"""A mechanism into a model of transformers, in place, and out of it again."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from clusterformer.errors import InputError
from clusterformer.huggingface.building import (
    Mechanism,
    build,
    find_mechanism,
    install,
    settings,
    uninstall,
)
from clusterformer.huggingface.dispatch import IMPLEMENTATION, SLOT, register, slots
from clusterformer.huggingface.layers import attention_layers
from clusterformer.huggingface.saving import converted, forget, note

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Model = TypeVar("Model", bound="PreTrainedModel")


def attach(model: Model, mechanism: Mechanism, **options: Any) -> Model:
    """Replace the attention of a transformers model by a mechanism, in place.

    Every self-attention layer gets a mechanism of its own; its weights become part of the model.
    In a decoder it is strictly causal. Layers with a sliding window keep their window, in linear
    memory. A mechanism that is attached already is replaced.

    Examples:
        >>> model = AutoModel.from_pretrained(folder)
        >>> huggingface.attach(model, "NeuralClusteringAttention", num_clusters=32)

    Args:
        model: Encoder or decoder that takes its attention from transformers' `AttentionInterface`.
            Its own weights do not change.
        mechanism: Class of the mechanism, or its name.
        **options: Options of the mechanism. The model gives `d_model`, `num_heads` and `causal`.

    Returns:
        The same model. `save_pretrained` saves the mechanism with it; `load` brings it back.

    Raises:
        ValueError: if model and mechanism cannot be combined, or an option is wrong; the model is
            then unchanged.
    """
    require_model(model, "attach the mechanism first, then add adapters")
    kind = find_mechanism(mechanism)
    layers = attention_layers(model)
    cores = build(layers, kind, options)  # all of them, before anything changes
    if slots(model):
        detach(model)
    elif model.config._attn_implementation == IMPLEMENTATION:
        raise InputError(
            "another model with a mechanism has the same config object; make each model from its "
            "own, such as copy.deepcopy(config)"
        )
    register()
    replaced = model.config._attn_implementation
    _set_attention(model, [layer.module for layer in layers], IMPLEMENTATION)
    install(model, layers, cores)
    made = next((core for core in cores if type(core) is kind), None)
    if made is None:
        warnings.warn(
            f"every layer of {type(model).__name__} has a sliding window and keeps it, so "
            f"{kind.__name__} is in none of them; there is nothing to calibrate or to train in it",
            stacklevel=2,
        )
    note(model, kind.__name__, options if made is None else settings(made, options), replaced)
    return model


def detach(model: Model) -> Model:
    """Give a model its own attention back, in place; the weights of the mechanism are dropped.

    Raises:
        ValueError: if no mechanism is attached, it is attached to a part with a config of its own,
            or PEFT has wrapped the model.
    """
    require_model(model, "give its merge_and_unload()")
    if not slots(model):
        raise InputError(f"{type(model).__name__} has no mechanism of clusterformer to detach")
    if not hasattr(model.config, "clusterformer"):
        parts = ", ".join(type(part).__name__ for part in converted(model))
        raise InputError(f"{type(model).__name__} has its mechanism in {parts}; give that model")
    modules = [part for part in model.modules() if hasattr(part, SLOT)]
    uninstall(model)
    _set_attention(model, modules, forget(model))
    return model


def _set_attention(model: PreTrainedModel, modules: list[nn.Module], name: str) -> None:
    """Let a model and its attention modules use the attention function of a name."""
    model.set_attn_implementation(name)
    for module in modules:  # in an EncoderDecoderModel they keep a config of before
        config: Any = getattr(module, "config", model.config)
        config._attn_implementation = name


def is_attached(model: nn.Module) -> bool:
    """Tell whether a mechanism is attached to a model, and its attention.

    It is not after `model.set_attn_implementation("sdpa")`, which keeps the mechanism but goes past
    it.
    """
    configs: list[Any] = [part.config for part in model.modules() if hasattr(part, SLOT)]
    return bool(configs) and all(c._attn_implementation == IMPLEMENTATION for c in configs)


def require_model(model: object, with_adapters: str | None) -> None:
    """Refuse what is no model of transformers.

    Args:
        model: What was given for one.
        with_adapters: What to do instead with a model that PEFT has wrapped; None: it may be one.

    Raises:
        ValueError: if it is something else.
    """
    from transformers import PreTrainedModel

    kinds = [kind.__name__ for kind in type(model).__mro__]
    wrapped = "PeftModel" in kinds
    if isinstance(model, PreTrainedModel) or (wrapped and with_adapters is None):
        return
    hint = f"; {with_adapters}" if wrapped else ""
    if "SentenceTransformer" in kinds:
        hint = "; give its model[0].auto_model"
    if "OptimizedModule" in kinds:
        hint = "; give the model that torch.compile got, and compile it afterwards"
    raise InputError(f"model must be a PreTrainedModel of transformers, got {kinds[0]}{hint}")
