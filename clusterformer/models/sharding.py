"""A network whose weights are divided among processes, layer by layer (FSDP2).

Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", 2023.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from clusterformer.attention import AttentionCore
from clusterformer.models.transformer import EncoderLayer


def shard_layers(network: nn.Module, mesh: DeviceMesh) -> dict[str, nn.Parameter]:
    """Divide the weights of a network, in place, among the processes of a mesh.

    It is FSDP2's `fully_shard`, layer by layer, for networks with weights without dimensions, such
    as the strength of a coupling: that function refuses them.

    Args:
        network: One of a task, or a model of transformers with a mechanism.
        mesh: One dimension of processes, as `torch.distributed.device_mesh.init_device_mesh` makes
            it.

    Returns:
        The weights that had no dimensions and now have one, by name.
    """
    # nobody writes in place into the logits of a network
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
    scalars = _widen_scalars(network)
    for layer in _layers(network):
        layer.register_forward_hook(_use_mechanism)
        fully_shard(layer, mesh=mesh)
    fully_shard(network, mesh=mesh)
    parameters = dict(network.named_parameters())
    return {name: parameters[name] for name in scalars}


@contextmanager
def whole(network: nn.Module) -> Iterator[None]:
    """Give each process the whole weights for a while; every process enters, and may run alone.

    Of a network that is not sharded nothing changes.
    """
    parts = [part for part in network.modules() if isinstance(part, FSDPModule)]
    for part in parts:
        part.unshard()
        part.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(part is not network, recurse=False)
            part.reshard()


def _layers(network: nn.Module) -> list[nn.Module]:
    """List the layers of all stacks, of our own networks and of those of transformers."""
    indivisible = {
        name
        for part in network.modules()
        for name in getattr(part, "_no_split_modules", None) or ()
    }
    stacked = (
        layer for part in network.modules() if isinstance(part, nn.ModuleList) for layer in part
    )
    return [
        layer
        for layer in stacked
        if isinstance(layer, EncoderLayer) or type(layer).__name__ in indivisible
    ]


def _use_mechanism(layer: nn.Module, _: Any, output: Any) -> Any:
    """Let every weight of a mechanism have a gradient, if only 0, in every process.

    A process whose texts are all short does not cluster; the others would wait for its gradients.
    """
    if not torch.is_grad_enabled():
        return output
    cores = (part for part in layer.modules() if isinstance(part, AttentionCore))
    weights = [weight for core in cores for weight in core.parameters() if weight.requires_grad]
    if not weights:
        return output
    nothing = torch.stack([0.0 * weight.sum().float() for weight in weights]).sum()
    first, *others = output if isinstance(output, tuple) else (output,)
    first = first + nothing.to(first.dtype)
    return (first, *others) if isinstance(output, tuple) else first


def _widen_scalars(network: nn.Module) -> list[str]:
    """Give weights without dimensions one, which `fully_shard` needs; return their names."""
    found = [name for name, weight in network.named_parameters() if not weight.dim()]
    for name in found:
        owner, _, own = name.rpartition(".")
        weight = network.get_parameter(name)
        wide = nn.Parameter(weight.detach().reshape(1), requires_grad=weight.requires_grad)
        setattr(network.get_submodule(owner), own, wide)
    return found
