"""Converted models and their configurations: what is noted and written for them to come back."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from clusterformer.huggingface.building import Mechanism, build, find_mechanism, install
from clusterformer.huggingface.dispatch import IMPLEMENTATION
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


def note(model: PreTrainedModel, mechanism: str, options: dict[str, Any], replaced: str) -> None:
    """Write the mechanism into the model's config, which is saved with it."""
    config = model.config
    config.clusterformer = {"mechanism": mechanism, "options": options, "replaces": replaced}
    config.attn_implementation = SAVED_IMPLEMENTATION
    module = CODE_FILE.removesuffix(".py")
    config.auto_map = {name: f"{module}.{name}" for name in sorted(auto_mappings(config))}
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


def auto_mappings(config: PreTrainedConfig) -> dict[str, Any]:
    """Find the mappings to models of the AutoModel classes that know this configuration."""
    from transformers.models.auto import modeling_auto

    mappings = {
        name: getattr(auto, "_model_mapping", None) or ()
        for name, auto in vars(modeling_auto).items()
        if name.startswith("AutoModel")
    }
    return {name: mapping for name, mapping in mappings.items() if type(config) in mapping}
