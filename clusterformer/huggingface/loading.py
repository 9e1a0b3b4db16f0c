"""Converted models out of folders and configurations: how they come back with their mechanism."""

from __future__ import annotations

import os
from copy import deepcopy
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from clusterformer.attention import AttentionCore
from clusterformer.errors import InputError
from clusterformer.huggingface.building import Mechanism, find_mechanism
from clusterformer.huggingface.dispatch import IMPLEMENTATION, SLOT, register
from clusterformer.huggingface.hub import HUB_OPTIONS, download, refuse_exported
from clusterformer.huggingface.saving import (
    SAVED_IMPLEMENTATION,
    auto_mappings,
    mark,
    saving_class,
)

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


def load(
    folder: str | os.PathLike[str],
    model_class: str | type | None = None,
    *,
    mechanism: Mechanism | None = None,
    **options: Any,
) -> PreTrainedModel:
    """Load a model with the mechanism that it was saved with, in evaluation mode.

    Examples:
        >>> model = huggingface.load(folder)
        >>> encoder = huggingface.load(folder, "AutoModel")  # without its head

    Args:
        folder: Folder, or name on the hub, of a model that `save_pretrained` wrote.
        model_class: Class of the model, such as `AutoModel` or `BertModel`, or its name; None: the
            one that was saved.
        mechanism: Class of the mechanism; needed only if it is your own.
        **options: Options of transformers' `from_pretrained`, such as `dtype` or `num_labels`.

    Raises:
        ValueError: if there is no model, it has no mechanism, or another attention is asked for.
    """
    config = options.pop("config", None)
    if config is None:
        config, options = _read_config(folder, options)
    kind, core = _converted_class(folder, config, model_class, mechanism, options)
    from safetensors import SafetensorError

    asked = options.pop("output_loading_info", False)
    try:
        model, found = kind.from_pretrained(
            folder, config=config, mechanism=core, output_loading_info=True, **options
        )
    except (OSError, SafetensorError) as error:
        said = shorten(str(error), 250, placeholder=" ...")
        raise InputError(f"{folder}: no weights that transformers finds: {said}") from error
    missing = sorted(name for name in found["missing_keys"] if f".{SLOT}." in name)
    if missing:
        raise InputError(f"{folder}: weights of {core.__name__} are missing, such as {missing[0]}")
    mark(model)
    result: Any = (model, found) if asked else model  # as from_pretrained answers
    return result


def from_config(
    config: PreTrainedConfig,
    model_class: str | type | None = None,
    *,
    mechanism: Mechanism | None = None,
    **options: Any,
) -> PreTrainedModel:
    """Make a model of random weights with the mechanism that its configuration names.

    `AutoModel.from_config(config, trust_remote_code=True)` of transformers does the same.

    Examples:
        >>> config = AutoConfig.from_pretrained(folder)  # of a converted model
        >>> model = huggingface.from_config(config)

    Args:
        config: Configuration of a converted model. The model gets a copy.
        model_class: Class of the model, as `load` takes it.
        mechanism: Class of the mechanism; needed only if it is your own.
        **options: Options of transformers' `from_config`, such as `dtype`.

    Raises:
        ValueError: if the configuration names no mechanism, or another attention is asked for.
    """
    config = deepcopy(config)
    name = config.name_or_path or type(config).__name__
    kind, core = _converted_class(name, config, model_class, mechanism, options)
    model: PreTrainedModel = kind._from_config(config, mechanism=core, **options)
    mark(model)
    return model


def _converted_class(
    source: str | os.PathLike[str],
    config: PreTrainedConfig,
    model_class: str | type | None,
    mechanism: Mechanism | None,
    options: dict[str, Any],
) -> tuple[Any, type[AttentionCore]]:
    """Find the class of a converted model and its mechanism, and set the attention of its config.

    Args:
        source: What has the configuration, for messages.
        config: Configuration of the model, changed in place.
        model_class: Class of the model, or its name; None: the one that was saved.
        mechanism: Class of the mechanism; None: the one that was saved.
        options: Options of the making of the model; `attn_implementation` is taken out.

    Raises:
        InputError: if the configuration names no mechanism, or another attention is asked for.
    """
    saved = getattr(config, "clusterformer", None)
    if not isinstance(saved, dict) or not isinstance(saved.get("options"), dict):
        raise InputError(
            f"{source}: its config.json names no mechanism of clusterformer; "
            "load it with transformers, and attach one"
        )
    core = find_mechanism(mechanism or saved["mechanism"])
    native = _native_class(source, config, model_class)
    other = options.pop("attn_implementation", None) or config._attn_implementation
    if other not in (None, IMPLEMENTATION, SAVED_IMPLEMENTATION):
        raise InputError(
            f"{source}: has {saved['mechanism']} for its attention; leave out "
            f"attn_implementation={other!r}, or detach the mechanism after loading"
        )
    register()
    config._attn_implementation = IMPLEMENTATION
    config.attn_implementation = SAVED_IMPLEMENTATION
    return saving_class(native), core


def _read_config(
    folder: str | os.PathLike[str], options: dict[str, Any]
) -> tuple[PreTrainedConfig, dict[str, Any]]:
    """Read the config.json of a model, and take what options change in it.

    Returns:
        The configuration, and the options that are not of it.

    Raises:
        InputError: if there is none, it is an export of ours, or the hub is out of reach.
    """
    from transformers import AutoConfig, PreTrainedConfig

    source = {name: options[name] for name in (*HUB_OPTIONS, "subfolder") if name in options}
    weights = {name: options[name] for name in ("dtype", "torch_dtype") if name in options}
    others = {name: options[name] for name in options if name not in source | weights}
    if not Path(folder).is_dir():  # says at once what transformers tries to find for 20 seconds
        hub = {name: source[name] for name in source if name != "subfolder"}
        try:
            download(str(folder), ["*config.json"], **hub)
        except InputError as error:
            raise InputError(f"{error}; give the folder of a converted model") from error
    elif not Path(folder, options.get("subfolder", ""), "config.json").is_file():
        hint = "give the folder of a model of transformers"
        if Path(folder, "adapter_config.json").is_file():
            hint = "adapters of PEFT: load their model, and give both to PeftModel.from_pretrained"
        raise InputError(f"{folder}: no config.json; {hint}")
    try:
        refuse_exported(str(folder), PreTrainedConfig.get_config_dict(folder, **source)[0])
        config, rest = AutoConfig.from_pretrained(
            folder, return_unused_kwargs=True, **source, **{**others, "trust_remote_code": False}
        )
    except InputError:
        raise
    except (OSError, ValueError, AttributeError, TypeError) as error:  # also of JSON that is no map
        said = shorten(str(error), 250, placeholder=" ...")
        raise InputError(f"{folder}: no model of transformers: {said}") from None
    return config, {**source, **weights, **rest}


def _native_class(
    folder: object, config: PreTrainedConfig, model_class: str | type | None
) -> type[PreTrainedModel]:
    import transformers
    from transformers.models.auto.auto_factory import _get_model_class

    names: list[str] = getattr(config, "architectures", None) or ["AutoModel"]
    kind = names[0] if model_class is None else model_class
    if isinstance(kind, str):
        kind = getattr(transformers, kind, kind)
    mapping: Any = getattr(kind, "_model_mapping", None)
    if mapping is not None and type(config) in mapping:
        kind = _get_model_class(config, mapping)
    is_model = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    known = isinstance(config, getattr(kind, "config_class", None) or ()) or any(
        # families such as InternLM3 have a configuration of their own, and Llama's models
        kind is _get_model_class(config, other)
        for other in auto_mappings(config).values()
    )
    if is_model and known:
        found: Any = kind
        return found
    name = getattr(kind, "__name__", kind)
    raise InputError(f"{folder}: {name} is no class of transformers for {config.model_type}")
