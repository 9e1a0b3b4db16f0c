"""Tensors of a sharded checkpoint: one file a process, in the format of torch's own (DCP).

A checkpoint of all else stands beside the folder and names it, with the checksums of its files. So
replacing that one file replaces the whole checkpoint at once.
"""

from __future__ import annotations

import pickle
import re
import shutil
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from clusterformer.errors import InputError, making
from clusterformer.structure import require_structure

SHARDS = "shards"
"""Key of a checkpoint whose tensors lie in a folder."""

_FOLDER = re.compile(r"[^/\\:]+\.shards")


class Shards(TypedDict):
    """Entry of a checkpoint whose tensors lie in a folder.

    Attributes:
        folder: Name of the folder, beside the checkpoint.
        files: Names of its files, and their CRC-32.
        scalars: Names of tensors without dimensions, which are stored with one.
    """

    folder: str
    files: dict[str, int]
    scalars: list[str]


class _Reader(dcp.FileSystemReader):
    """A reader that takes nothing but what `write_shards` writes, and executes nothing."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        with (Path(self.path) / ".metadata").open("rb") as file:
            found = _Unpickler(file).load()
        found.storage_meta = StorageMeta(load_id=self.load_id)
        return found


class _Unpickler(pickle.Unpickler):
    """An unpickler of the table of contents: plain values and classes that only hold values."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            "pathlib": {"PosixPath", "WindowsPath"},
            "torch": {"Size"},
            "torch.serialization": {"_get_layout"},
            "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
            "torch.distributed.checkpoint.metadata": {
                "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
                "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
            },
        }  # fmt: skip
        dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not dtype and name not in allowed.get(module, ()):
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)


def write_shards(tensors: dict[str, Tensor], folder: Path) -> None:
    """Write each process's part of some tensors; every process calls this.

    Raises:
        InputError: in every process, with the one that cannot write.
    """
    writer = dcp.FileSystemWriter(folder, thread_count=1)
    try:
        with _quiet():
            dcp.save(tensors, storage_writer=writer)
    except dcp.CheckpointException as error:
        rank, (reason, _) = min(error.failures.items())
        inner = reason if isinstance(reason, OSError) else reason.__context__
        text = inner.strerror if isinstance(inner, OSError) else " ".join(str(reason).split())[:200]
        raise InputError(f"process {rank} cannot write to {folder.parent}: {text}") from error


def checksums(folder: Path) -> dict[str, int]:
    """Compute the CRC-32 of each file of a folder."""
    return {path.name: _checksum(path) for path in sorted(folder.iterdir())}


def check_shards(checkpoint: Path, entry: Shards) -> Path:
    """Find the folder of a checkpoint, and see that none of its files has changed.

    Raises:
        InputError: if one is missing or has changed.
    """
    require_structure(entry, Shards, f"{checkpoint}: refused, shards")
    folder = checkpoint.parent / entry["folder"]
    if not _FOLDER.fullmatch(entry["folder"]):
        raise InputError(f"{checkpoint}: refused, its shards are not in a folder beside it")
    for name, expected in entry["files"].items():
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise InputError(f"{path}: no such file, a shard of {checkpoint.name}")
        if _checksum(path) != expected:
            raise InputError(f"{path}: refused, it has changed since it was written")
    return folder


def describe_shards(folder: Path, files: dict[str, int]) -> dict[str, TensorStorageMetadata]:
    """Read the shape and dtype of each tensor in a folder.

    Raises:
        InputError: if its table of contents is none of `write_shards`.
    """
    with making(f"{folder}: refused, its table of contents"):
        found = _Reader(folder).read_metadata()
        described = {
            name: one
            for name, one in found.state_dict_metadata.items()
            if isinstance(one, TensorStorageMetadata)
        }
        if not {info.relative_path for info in found.storage_data.values()} <= files.keys():
            raise ValueError("it names files of another folder")
        if len(described) < len(found.state_dict_metadata):
            raise ValueError("it has more than tensors")
    return described


def read_shards(folder: Path, tensors: dict[str, Tensor], *, together: bool) -> None:
    """Fill tensors from a folder, each process its own parts.

    Args:
        folder: Folder that `check_shards` found.
        tensors: Tensors to fill, by name.
        together: Whether all processes of a training read at once; else this one reads alone.
    """
    with making(f"{folder}: refused"), _quiet():
        dcp.load(tensors, storage_reader=_Reader(folder), no_dist=not together)


def read_whole(checkpoint: Path, entry: Shards) -> dict[str, Tensor]:
    """Read all tensors of a sharded checkpoint into this process.

    Raises:
        InputError: if a file is missing or has changed, or is none of `write_shards`.
    """
    folder = check_shards(checkpoint, entry)
    described = describe_shards(folder, entry["files"])
    with making(f"{folder}: refused"):
        tensors = {
            name: torch.empty(one.size, dtype=one.properties.dtype)
            for name, one in described.items()
        }
    read_shards(folder, tensors, together=False)
    scalars = set(entry["scalars"])
    return {name: x.reshape(()) if name in scalars else x for name, x in tensors.items()}


def remove_shards(checkpoint: Path, except_for: str | None = None) -> None:
    """Remove the folders of a checkpoint, but for one."""
    own = re.compile(rf"{re.escape(checkpoint.stem)}-[0-9a-f]{{8}}\.shards")
    for folder in checkpoint.parent.glob("*.shards"):  # those of last-v1.ckpt are not of last.ckpt
        if own.fullmatch(folder.name) and folder.name != except_for:
            shutil.rmtree(folder, ignore_errors=True)


def flatten(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """Take the tensors of model and optimisers out of a checkpoint, in place, by name."""
    flat = {f"model/{name}": tensor for name, tensor in checkpoint["state_dict"].items()}
    checkpoint["state_dict"] = {}
    for number, optimizer in enumerate(checkpoint.get("optimizer_states", [])):
        for weight, state in optimizer["state"].items():
            for name in [name for name, value in state.items() if isinstance(value, Tensor)]:
                flat[f"optimizer/{number}/{weight}/{name}"] = state.pop(name)
    return flat


def unflatten(checkpoint: dict[str, Any], flat: dict[str, Tensor]) -> None:
    """Put the tensors that `flatten` took out of a checkpoint back, in place."""
    for name, tensor in flat.items():
        kind, _, rest = name.partition("/")
        if kind == "model":
            checkpoint["state_dict"][rest] = tensor
        else:
            number, weight, key = rest.split("/")
            optimizer = checkpoint["optimizer_states"][int(number)]
            optimizer["state"].setdefault(int(weight), {})[key] = tensor


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out torch's warning that a process reads or writes without others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _checksum(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found = zlib.crc32(block, found)
    return found
