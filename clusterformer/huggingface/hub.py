"""Models at huggingface.co: on this machine, or one line that says why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterformer.errors import InputError

FILES = ("*.json", "*.txt", "*.jinja", "*.safetensors")
"""Files of a model and its tokenizer; no code."""

HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "revision", "token")
"""Options of transformers' `from_pretrained` that say which files, and from where."""


def download(name: str, files: Sequence[str] = FILES, **options: Any) -> Path:
    """Return the folder with the files of a model; download those that are not on this machine.

    Args:
        name: Name of the model at huggingface.co.
        files: Patterns of the files.
        **options: Those of HUB_OPTIONS.

    Raises:
        InputError: if there is no such model, or it cannot be downloaded.
    """
    from huggingface_hub import errors, snapshot_download

    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError(f"{name}: no such folder")
    try:
        return Path(snapshot_download(name, allow_patterns=list(files), **options))
    except errors.RepositoryNotFoundError:
        reason = "huggingface.co has no such model, or it is not public"
    except errors.HFValidationError:
        reason = "neither a folder nor a name"
    except OSError:
        reason = "no such folder, not downloaded before, and huggingface.co does not answer"
    except Exception as error:  # of the client's HTTP library
        reason = f"cannot be downloaded: {' '.join(str(error).split())[:200]}"
    raise InputError(f"{name}: {reason}")


def refuse_exported(name: str, config: Mapping[str, Any]) -> None:
    """Refuse a model that `clusterformer export` wrote: transformers would ask to run its code.

    Args:
        name: Name of the model, for the message.
        config: Entries of its config.json.

    Raises:
        InputError: if it is one.
    """
    if config.get("model_type") == "clusterformer":
        raise InputError(
            f"{name}: a model that `clusterformer export` wrote: load it with clusterformer.load, "
            "or start a training from it with --model.init_from"
        )
