"""A trained model as a folder of safetensors and JSON, with the entries of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from clusterformer import __version__
from clusterformer.errors import InputError, reading
from clusterformer.structure import require_structure
from clusterformer.training.checkpoints import CHECKPOINT_KEY, Contents
from clusterformer.training.config_files import to_yaml

if TYPE_CHECKING:
    from clusterformer.training.saved import Saved

ENTRIES = "clusterformer.json"
"""File of a checkpoint without its weights: configuration, task, its vocabulary and so on."""

WEIGHTS = "model.safetensors"
_TENSOR = "task tensor "
"""Beginning of the names of the task's own tensors among the weights."""


def is_exported(path: Path) -> bool:
    """Tell whether a folder holds an exported model."""
    return (path / ENTRIES).is_file()


def write_exported(folder: Path, saved: Saved) -> None:
    """Write a model with what it takes to make it again.

    Args:
        folder: Folder that is there.
        saved: Configuration, task and weights.
    """
    from safetensors.torch import save_file

    sections = {name: saved.config[name] for name in ("seed_everything", "model", "data")}
    if "init_from" in sections["model"]:  # a folder of this machine, of no use to others
        sections["model"] = {**sections["model"], "init_from": None}
    entries = {
        "version": __version__,
        "config": to_yaml(sections),
        "seed": saved.config["seed_everything"],
        "kind": saved.kind,
        "mode": saved.mode,
        "task": saved.state,
    }
    weights = saved.weights.items()
    tensors = {name: weight.detach().clone().contiguous() for name, weight in weights}
    plain = _without_tensors(entries, tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    text = json.dumps(plain, ensure_ascii=False, indent=1)
    (folder / ENTRIES).write_text(f"{text}\n", encoding="utf-8")


def read_exported(folder: Path) -> dict[str, Any]:
    """Read a model as a checkpoint: its entries and its weights.

    Raises:
        InputError: if a file is missing or damaged, or a weight is NaN.
    """
    with reading(folder / WEIGHTS, "weights of an exported model in safetensors"):
        from safetensors.torch import load_file

        tensors = load_file(folder / WEIGHTS)
    broken = next((name for name, tensor in tensors.items() if tensor.isnan().any()), None)
    if broken is not None:
        raise InputError(f"{folder / WEIGHTS}: refused, {broken} holds NaN")
    with reading(folder / ENTRIES, "what `clusterformer export` writes"):
        entries = _with_tensors(json.loads((folder / ENTRIES).read_text(encoding="utf-8")), tensors)
    weights = {name: each for name, each in tensors.items() if not name.startswith(_TENSOR)}
    found = {CHECKPOINT_KEY: entries, "state_dict": weights, "global_step": 0}
    require_structure(found, Contents, f"{folder}: refused, model")
    return found


def _without_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Replace each tensor of nested values by its name in `tensors`, where it is put."""
    if isinstance(value, Tensor):
        name = f"{_TENSOR}{len(tensors)}"
        tensors[name] = value.contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {key: _without_tensors(each, tensors) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_tensors(each, tensors) for each in value]
    return value


def _with_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if set(value) == {"tensor"} and str(value["tensor"]).startswith(_TENSOR):
            return tensors[value["tensor"]]
        return {key: _with_tensors(each, tensors) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_tensors(each, tensors) for each in value]
    return value
