"""Options that make no sense beside a pretrained model, or without one: refused, or named."""

from __future__ import annotations

import inspect
import logging
from dataclasses import fields
from functools import partial
from typing import Any

from clusterformer.attention import AttentionCore, NeuralClusteringAttention
from clusterformer.errors import InputError
from clusterformer.models.config import MakeCore, TransformerConfig

_log = logging.getLogger(__name__)

PRETRAINED_LR = 5e-5
"""Default of the peak learning rate of a pretrained model's weights."""

_IGNORED = ("d_model", "num_heads", "num_layers", "norm", "positions", "rotary_base")
_OWN_NETWORKS = (
    "outer_attention",
    "decoder_attention",
    "cross_attention",
    "recompute",
    "short_convolution",
    "query_scale",
)


def refuse_own_networks(config: TransformerConfig) -> None:
    """Refuse options that only networks of our own have.

    Raises:
        InputError: for the first one.
    """
    defaults = {field.name: field.default for field in fields(config)}
    for name in _OWN_NETWORKS:
        if getattr(config, name) != defaults[name]:
            raise InputError(f"{name} is not for a pretrained model; leave model.{name} out")


def refuse_without_pretrained(config: TransformerConfig, pretrained_lr: float) -> None:
    """Refuse options of a pretrained model where there is none, as with `init_from`.

    Raises:
        InputError: for the first one.
    """
    given = {"freeze": config.freeze, "pretrained_lr": pretrained_lr != PRETRAINED_LR}
    for name in given if config.pretrained is None else ():
        if given[name]:
            raise InputError(
                f"{name} is for a pretrained model, and all weights of this one are trained, with "
                f"lr; leave model.{name} out, or give model.pretrained"
            )


def warn_of_ignored(config: TransformerConfig) -> None:
    """Name options that the model decides on."""
    defaults = {field.name: field.default for field in fields(config)}
    given = [name for name in _IGNORED if getattr(config, name) != defaults[name]]
    if config.d_ff not in (defaults["d_ff"], 4 * config.d_model):  # which ClusterFormer gives
        given.append("d_ff")
    if given:
        _log.warning(
            f"the pretrained model has its own {', '.join(given)}; those given are ignored"
        )


def compare_with_saved(config: TransformerConfig, model_config: dict[str, Any]) -> None:
    """Compare the mechanism that is asked for with the one that a model was saved with.

    The model keeps its own. So another one is refused, but for the default, which nobody may have
    asked for; options that differ are warned of.

    Raises:
        InputError: if another mechanism is asked for.
    """
    saved = model_config.get("clusterformer")
    if saved is None:
        return
    kind, options = mechanism(config.attention)
    if kind.__name__ != saved["mechanism"] and kind is not NeuralClusteringAttention:
        raise InputError(
            f"the pretrained model was saved with {saved['mechanism']}, which it keeps, got "
            f"{kind.__name__}; leave model.attention out, or give the model that it was made from"
        )
    defaults = inspect.signature(kind).parameters
    own = saved["options"] if kind.__name__ == saved["mechanism"] else {}
    other = [
        name
        for name, value in options.items()
        if value != defaults[name].default and value != own.get(name)
    ]
    if other:
        _log.warning(
            f"the pretrained model keeps {saved['mechanism']} as it was saved; model.attention's "
            f"{', '.join(other)} is ignored"
        )


def mechanism(make: MakeCore) -> tuple[type[AttentionCore], dict[str, Any]]:
    """Return the class of a mechanism and its options.

    Args:
        make: The class, or a `functools.partial` of it, as the command line makes one.

    Raises:
        InputError: if it is another function, which transformers could not save.
    """
    options: dict[str, Any] = {}
    if isinstance(make, partial):
        options = dict(make.keywords)
        make = next((part for part in (make.func, *make.args) if isinstance(part, type)), make)
    if not (isinstance(make, type) and issubclass(make, AttentionCore)):
        raise InputError(
            "with a pretrained model, attention is a class or a functools.partial of one, "
            f"got {make!r}"
        )
    options.pop("causal", None)  # as the model is
    return make, options
