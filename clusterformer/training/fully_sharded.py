"""Training with weights, gradients and optimiser divided among processes (FSDP2).

Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", 2023.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy, StrategyRegistry
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from clusterformer.errors import InputError
from clusterformer.models.sharding import shard_layers
from clusterformer.training import shard_files
from clusterformer.training.checkpoints import last_good, read


class FullyShardedStrategy(ModelParallelStrategy):
    """A strategy that divides weights, gradients and optimiser, layer by layer, among processes.

    Lightning's ModelParallelStrategy, with all processes in one data-parallel group. Its
    checkpoints replace each other at once, hold plain tensors, and are those of any strategy: a run
    goes on with any number of processes, sharded or not.

    Args:
        save_distributed_checkpoint: Whether each process writes its part of a checkpoint, into a
            folder beside it; else the first one writes the whole.
        process_group_backend: Backend of torch.distributed, such as "gloo"; by device if None.
        timeout: Time after which a process that waits for others gives up.
    """

    def __init__(
        self,
        save_distributed_checkpoint: bool = False,
        process_group_backend: str | None = None,
        timeout: timedelta | None = default_pg_timeout,
    ) -> None:
        super().__init__(
            save_distributed_checkpoint=save_distributed_checkpoint,
            process_group_backend=process_group_backend,
            timeout=timeout,
        )
        self._scalars: dict[str, nn.Parameter] = {}

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        self._tensor_parallel_size = 1
        super().setup_environment()

    def divide(self, network: nn.Module) -> None:
        """Divide the weights of a network, in place, if they are not yet."""
        if isinstance(network, FSDPModule):
            return
        scalars = shard_layers(network, self.device_mesh["data_parallel"])
        self._scalars = {f"network.{name}": weight for name, weight in scalars.items()}

    def lightning_module_state_dict(self) -> dict[str, Any]:
        assert self.lightning_module is not None
        return self._portable(self.lightning_module.state_dict(), set(self._scalars))

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        if isinstance(optimizer, LightningOptimizer):
            optimizer = optimizer.optimizer
        state = optimizer.state_dict()
        scalars = self._scalar_numbers(optimizer)
        state["state"] = {
            number: self._portable(values, set(values) if number in scalars else set())
            for number, values in state["state"].items()
        }
        return state

    def _portable(self, tensors: Mapping[str, Any], scalars: set[str]) -> dict[str, Any]:
        """Make what a checkpoint holds: the parts of each process, or all in the first one."""
        if self._save_distributed_checkpoint:
            return dict(tensors)
        found = {}
        for name, value in tensors.items():
            if isinstance(value, DTensor):
                value = value.full_tensor()
                value = value.reshape(()) if name in scalars else value
            if self.is_global_zero:
                found[name] = value.cpu() if isinstance(value, Tensor) else value
        return found

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        path = Path(self.broadcast(filepath))
        failure: InputError | None = None
        try:
            if self._save_distributed_checkpoint:
                self._write_shards(checkpoint, path)
            if self.is_global_zero:
                self.checkpoint_io.save_checkpoint(checkpoint, path)
        except InputError as error:
            failure = error
        found = [str(failure) if failure else None] * self.world_size
        torch.distributed.all_gather_object(found, found[0])
        if any(found):  # the first process tells it, and all end
            if not self.is_global_zero:
                raise SystemExit(2)
            raise failure or InputError(next(filter(None, found)))
        if self.is_global_zero:
            entry = checkpoint.get(shard_files.SHARDS)
            shard_files.remove_shards(path, entry and entry["folder"])

    def _write_shards(self, checkpoint: dict[str, Any], path: Path) -> None:
        name = self.broadcast(f"{path.stem}-{os.urandom(4).hex()}.shards")
        folder, tensors = path.parent / name, shard_files.flatten(checkpoint)
        try:
            shard_files.write_shards(tensors, folder)
        except InputError as error:
            shard_files.remove_shards(path, self._current(path))
            raise InputError(f"{error}; last good checkpoint: {last_good(path.parent)}") from error
        if self.is_global_zero:
            scalars = [f"model/{name}" for name in self._scalars]
            for number, optimizer in enumerate(self.optimizers):
                weights = self._scalar_numbers(optimizer)
                scalars += [
                    name
                    for name, tensor in tensors.items()
                    if tensor.dim() and name.startswith(f"optimizer/{number}/")
                    if int(name.split("/")[2]) in weights
                ]
            checkpoint[shard_files.SHARDS] = {
                "folder": name,
                "files": shard_files.checksums(folder),
                "scalars": scalars,
            }

    def _current(self, path: Path) -> str | None:
        """Name of the folder of the checkpoint that stands there now."""
        if not path.exists():
            return None
        entry = read(path, tensors=False).get(shard_files.SHARDS)
        return entry["folder"] if entry else None

    def remove_checkpoint(self, filepath: str | Path) -> None:
        super().remove_checkpoint(filepath)
        if self.is_global_zero:
            shard_files.remove_shards(Path(filepath))

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        path = Path(self.broadcast(checkpoint_path))
        checkpoint = read(path, tensors=False)
        if entry := checkpoint.get(shard_files.SHARDS):
            shard_files.unflatten(checkpoint, self._read_parts(path, entry))
        return checkpoint

    def _read_parts(self, path: Path, entry: shard_files.Shards) -> dict[str, Tensor]:
        """Read this process's parts of a sharded checkpoint, whoever wrote them."""
        assert self.lightning_module is not None
        own = {f"model/{name}": x for name, x in self.lightning_module.state_dict().items()}
        for number, optimizer in enumerate(self.optimizers):
            for weight, parameter in enumerate(_weights(optimizer)):
                own |= {f"optimizer/{number}/{weight}/{key}": parameter for key in _MOMENTS}
        folder = path.parent / entry["folder"]
        tensors: dict[str, Tensor] = {}
        for name, one in shard_files.describe_shards(folder, entry["files"]).items():
            like = own.get(name)
            if like is not None and like.shape == one.size:
                tensors[name] = torch.empty_like(like, dtype=one.properties.dtype).detach()
            elif name.startswith("model/") or self.optimizers:
                tensors[name] = torch.empty(one.size, dtype=one.properties.dtype)
        shard_files.read_shards(folder, tensors, together=True)
        return tensors

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        assert self.lightning_module is not None
        own = self.lightning_module.state_dict()
        found = {name: _like(x, own.get(name)) for name, x in checkpoint["state_dict"].items()}
        self.lightning_module.load_state_dict(found, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            numbers = [number for group in saved["param_groups"] for number in group["params"]]
            weights = dict(zip(numbers, _weights(optimizer), strict=False))
            for number, state in saved["state"].items():
                for name, value in state.items():
                    if isinstance(value, Tensor) and name in _MOMENTS:
                        state[name] = _like(value, weights.get(number))
            optimizer.load_state_dict(saved)

    def _scalar_numbers(self, optimizer: Optimizer) -> set[int]:
        """Numbers of the weights without dimensions in the state of an optimiser."""
        scalars = {id(weight) for weight in self._scalars.values()}
        return {number for number, p in enumerate(_weights(optimizer)) if id(p) in scalars}


_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
"""Names of the optimiser's tensors that have the shape of their weight."""

StrategyRegistry.register(
    "fsdp2", FullyShardedStrategy, description="weights, gradients, optimiser divided (FSDP2)"
)
StrategyRegistry.register(
    "fsdp2_sharded_checkpoint",
    FullyShardedStrategy,
    description="the same, and each process writes its part of a checkpoint",
    save_distributed_checkpoint=True,
)


def check_sharding(strategy: str | Strategy | None, precision: str | int | None) -> None:
    """Refuse strategies of Lightning that divide a model in another way, and fp16 with ours.

    Raises:
        InputError: with what to take instead.
    """
    name = strategy if isinstance(strategy, str) else type(strategy).__name__
    name = name.rpartition(".")[2]
    ours = isinstance(strategy, FullyShardedStrategy) or name.startswith("fsdp2")
    if ours and str(precision) in ("16", "16-mixed"):
        raise InputError(
            f"trainer.precision {precision} has no loss scaler for divided gradients; "
            "take bf16-mixed or 32-true"
        )
    other = name in _OTHERS or name.lower().startswith("deepspeed")
    if not ours and (other or isinstance(strategy, ModelParallelStrategy)):
        raise InputError(
            f"trainer.strategy {name} does not keep our checkpoints; to divide the model among "
            "processes take fsdp2, which is ModelParallelStrategy with fully_shard"
        )


_OTHERS = {"fsdp", "fsdp_cpu_offload", "FSDPStrategy", "ModelParallelStrategy"}


def _weights(optimizer: Optimizer) -> list[nn.Parameter]:
    """List the weights of an optimiser in the order in which its state numbers them."""
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def _like(value: Tensor, own: Tensor | None) -> Tensor:
    """Take this process's part of a tensor, if that is how it has its own."""
    if not isinstance(own, DTensor) or isinstance(value, DTensor):
        return value
    if not value.dim():
        value = value.reshape(1)
    if value.shape != own.shape:
        return value
    mesh, placements = own.device_mesh, own.placements
    return distribute_tensor(value.to(own.device), mesh, placements, src_data_rank=None)
