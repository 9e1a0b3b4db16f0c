"""Converted models in folders: which mechanism they have, and how they come back."""

from __future__ import annotations

import os
from copy import deepcopy
from functools import cache
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from clusterformer.attention import AttentionCore
from clusterformer.errors import InputError
from clusterformer.huggingface.building import Mechanism, build, find_mechanism, install
from clusterformer.huggingface.dispatch import IMPLEMENTATION, SLOT, register
from clusterformer.huggingface.hub import HUB_OPTIONS, download, refuse_exported
from clusterformer.huggingface.layers import attention_layers

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

SAVED_IMPLEMENTATION = "clusterformer.huggingface.load"
"""Attention in a saved config.json.

No attention function has this name. So a folder that is loaded without its code raises an error,
which names what loads it, instead of turning into plain attention.
"""

CODE_FILE = "modeling_clusterformer.py"
CODE = '''"""Loads this model with its attention mechanism; needs `pip install clusterformer`."""

import sys

from clusterformer import huggingface


class _Loader:
    @classmethod
    def from_pretrained(cls, folder, *args, **kwargs):
        return huggingface.load(folder, cls.__name__, **kwargs)

    @classmethod
    def _from_config(cls, config, **kwargs):
        return huggingface.from_config(config, cls.__name__, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class):
        """Do nothing: there is no code to save."""


for _name in {names}:
    setattr(sys.modules[__name__], _name, type(_name, (_Loader,), {{"__module__": __name__}}))
'''


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
        raise InputError(f"{folder}: no config.json; give the folder of a model of transformers")
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


def note(model: PreTrainedModel, mechanism: str, options: dict[str, Any], replaced: str) -> None:
    """Write the mechanism into the model's config, which is saved with it."""
    config = model.config
    config.clusterformer = {"mechanism": mechanism, "options": options, "replaces": replaced}
    config.attn_implementation = SAVED_IMPLEMENTATION
    module = CODE_FILE.removesuffix(".py")
    config.auto_map = {name: f"{module}.{name}" for name in _auto_classes(config)}
    mark(model)


def forget(model: PreTrainedModel) -> str:
    """Take the mechanism out of the config; return the attention that it replaced."""
    config = model.config
    replaced: str = config.clusterformer["replaces"]
    for name in ("clusterformer", "attn_implementation", "auto_map"):
        delattr(config, name)
    for part in converted(model):
        part.__class__ = type(part).__mro__[2]
    return replaced


def converted(model: nn.Module) -> list[PreTrainedModel]:
    """List the models inside a model, and it, that are saved with a mechanism."""
    return [part for part in _own_models(model) if isinstance(part, _Converted)]


def mark(model: PreTrainedModel) -> None:
    """Let the model, and each model inside it, be saved with its mechanism."""
    for part in _own_models(model):
        part.__class__ = saving_class(type(part))


@cache
def _subclass(kind: type) -> type:
    return type(kind.__name__, (_Converted, kind), {"__module__": kind.__module__})


def saving_class(kind: Any) -> Any:
    """Subclass a class of transformers, under its name: its models are saved with a mechanism."""
    return kind if issubclass(kind, _Converted) else _subclass(kind)


class _Converted:
    """Model of transformers that is made with its mechanism, and saved with it."""

    config: Any

    def __init__(
        self,
        config: PreTrainedConfig,
        *args: Any,
        mechanism: Mechanism | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        model = cast("PreTrainedModel", self)
        layers = attention_layers(model)
        saved = config.clusterformer
        kind = find_mechanism(mechanism or saved["mechanism"])
        install(model, layers, build(layers, kind, saved["options"]))

    @property
    def _is_stateful(self) -> bool:
        """Tell transformers that this model cannot forget tokens, as assisted decoding does."""
        return bool(self.config._attn_implementation == IMPLEMENTATION)

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        folder = Path(save_directory)
        names = getattr(self.config, "auto_map", None)  # none after `detach`
        if names and is_main_process and not folder.is_file():  # which transformers reports
            folder.mkdir(parents=True, exist_ok=True)
            (folder / CODE_FILE).write_text(CODE.format(names=sorted(names)), encoding="utf-8")
        super().save_pretrained(  # type: ignore[misc]
            save_directory, is_main_process, *args, **kwargs
        )

    def _get_files_timestamps(self, working_dir: str | os.PathLike[str]) -> dict[str, float]:
        """List the files before a saving; transformers uploads those that are new or newer.

        The code, which is written before, counts as new.
        """
        found: dict[str, float] = super()._get_files_timestamps(working_dir)  # type: ignore[misc]
        return {name: time for name, time in found.items() if name != CODE_FILE}

    def __reduce__(self) -> tuple[Any, ...]:
        return _empty, (type(self).__mro__[2],), self.__dict__


def _empty(kind: type) -> Any:
    """Make an empty model for `pickle` and `copy`, which then set its attributes."""
    converted = saving_class(kind)
    return converted.__new__(converted)


def _own_models(model: nn.Module) -> list[PreTrainedModel]:
    from transformers import PreTrainedModel

    return [part for part in model.modules() if isinstance(part, PreTrainedModel)]


def _auto_classes(config: PreTrainedConfig) -> list[str]:
    """List the AutoModel classes that know models of this configuration."""
    return sorted(_auto_mappings(config))


def _auto_mappings(config: PreTrainedConfig) -> dict[str, Any]:
    """Find the mappings to models of the AutoModel classes that know this configuration."""
    from transformers.models.auto import modeling_auto

    mappings = {
        name: getattr(auto, "_model_mapping", None) or ()
        for name, auto in vars(modeling_auto).items()
        if name.startswith("AutoModel")
    }
    return {name: mapping for name, mapping in mappings.items() if type(config) in mapping}


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
        for other in _auto_mappings(config).values()
    )
    if is_model and known:
        found: Any = kind
        return found
    name = getattr(kind, "__name__", kind)
    raise InputError(f"{folder}: {name} is no class of transformers for {config.model_type}")
