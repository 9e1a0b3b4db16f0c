"""Mechanisms for the layers of a model: built from its sizes, put in, taken out."""

from __future__ import annotations

import inspect
import json
from typing import Any, get_type_hints

import torch
from torch import nn

from clusterformer import attention
from clusterformer.attention import AttentionCore, LocalAttention
from clusterformer.errors import InputError
from clusterformer.huggingface.dispatch import SLOT, AttachedMechanism, keep_input
from clusterformer.huggingface.layers import Layer
from clusterformer.structure import require_structure

Mechanism = str | type[AttentionCore]


def find_mechanism(mechanism: Mechanism) -> type[AttentionCore]:
    """Find a mechanism by its name; a class is returned as it is.

    Raises:
        InputError: if there is no such mechanism.
    """
    if isinstance(mechanism, type) and issubclass(mechanism, AttentionCore):
        return mechanism
    kinds = {kind.__name__: kind for kind in attention.mechanisms()}
    if not isinstance(mechanism, str) or mechanism not in kinds:
        raise InputError(f"mechanism must be one of {', '.join(kinds)}, got {mechanism!r}")
    return kinds[mechanism]


def build(
    layers: list[Layer], kind: type[AttentionCore], options: dict[str, Any]
) -> list[AttentionCore]:
    """Make a mechanism for each layer; a layer with a sliding window keeps that window.

    Raises:
        InputError: if the mechanism cannot do what the model needs, or an option is wrong.
    """
    _check_options(kind, options)
    with torch.device("cpu"):  # seeded randomness needs a real device, also where a model is read
        return [_build_one(layer, kind, options) for layer in layers]


def _build_one(layer: Layer, kind: type[AttentionCore], options: dict[str, Any]) -> AttentionCore:
    further = dict(options)
    if further.pop("causal", layer.causal) != layer.causal:
        raise InputError(
            f"causal must be {layer.causal}, as the model is, got {options['causal']!r}"
        )
    if layer.causal and True not in kind.causal_forms:
        strict = [k.__name__ for k in attention.mechanisms() if True in k.causal_forms]
        raise InputError(
            f"{kind.__name__} cannot be causal, as {layer.name} is; "
            f"mechanisms that can are {', '.join(strict)}"
        )
    width, heads = layer.num_heads * layer.head_width, layer.num_heads
    core = kind(width, heads, causal=layer.causal, **further)
    if layer.window is not None:
        return LocalAttention(width, heads, causal=layer.causal, window=layer.window)
    core.read_width(layer.hidden_width)
    return core


def settings(core: AttentionCore, options: dict[str, Any]) -> dict[str, Any]:
    """List all options of a mechanism that was made from some of them.

    What is saved keeps its meaning when defaults change: an option that was left to the mechanism
    has the value that it chose. `causal` is the model's, and is left out.
    """
    named: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(type(core)).parameters.items())[2:]:
        value = options.get(name, parameter.default)
        named[name] = getattr(core, name, None) if value is None else value
    named.pop("causal", None)
    return named


def _check_options(kind: type[AttentionCore], options: dict[str, Any]) -> None:
    taken = list(inspect.signature(kind).parameters)
    hints = get_type_hints(kind.__init__)
    for name, value in options.items():
        if name in ("d_model", "num_heads"):
            raise InputError(f"{name} is that of the model; leave it out")
        if name not in taken:
            raise InputError(
                f"{kind.__name__} has no option {name!r}; it has {', '.join(taken[2:])}"
            )
        require_structure(value, hints.get(name, Any), name)
    try:
        json.dumps(options)
    except TypeError as error:
        raise InputError(f"options must be plain values, which JSON can hold: {error}") from None


def install(model: nn.Module, layers: list[Layer], cores: list[AttentionCore]) -> None:
    """Put each mechanism into its layer, in the dtype and on the device of the layer.

    A quantised layer has weights of 8 bits or of whole numbers, or no parameters at all: there the
    mechanism has the dtype of the rest of the model.
    """
    for layer, core in zip(layers, cores, strict=True):
        weights = [*layer.module.parameters(), *model.parameters()]
        dtype = next(w.dtype for w in weights if w.is_floating_point() and w.dtype.itemsize > 1)
        core.to(dtype).train(layer.module.training)
        if weights[0].device.type != "meta":  # while a folder is read, the reader moves it
            core.to(weights[0].device)
        layer.module.add_module(SLOT, AttachedMechanism(core))
        layer.module.register_forward_pre_hook(keep_input, with_kwargs=True)


def uninstall(model: nn.Module) -> None:
    """Take all mechanisms out of a model."""
    for module in list(model.modules()):
        if hasattr(module, SLOT):
            delattr(module, SLOT)
            for number, hook in list(module._forward_pre_hooks.items()):
                if hook is keep_input:
                    del module._forward_pre_hooks[number]
                    module._forward_pre_hooks_with_kwargs.pop(number, None)
