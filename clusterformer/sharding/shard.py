"""A network whose attention runs over a shared sequence."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from clusterformer.attention.base import AttentionCore, MultiHeadAttention
from clusterformer.attention.full import FullAttention
from clusterformer.attention.neural_clustering import NeuralClusteringAttention
from clusterformer.sharding.peers import Peers
from clusterformer.sharding.sharded_clustering import ShardedClustering
from clusterformer.sharding.sharded_full import ShardedFullAttention

Network = TypeVar("Network", bound=nn.Module)


def shard(network: Network, peers: Peers) -> Network:
    """Let the attention of a network run over sequences that several processes share, in place.

    Everything else in an encoder works on single tokens. Each process gives its tokens and gets
    their outputs. Add positions before: a process does not know at which one its share begins.

    Args:
        network: Network with `MultiHeadAttention`, such as an encoder.
        peers: The processes.

    Raises:
        ValueError: if an attention has rotary positions, or is neither full attention nor neural
            clustering attention.
    """
    cores: list[tuple[MultiHeadAttention, AttentionCore]] = []
    for module in network.modules():
        if not isinstance(module, MultiHeadAttention):
            continue
        if module.rotary_base is not None:
            raise ValueError("a shared sequence needs positions added before, got rotary ones")
        core = module.core
        if isinstance(core, NeuralClusteringAttention):
            cores.append((module, ShardedClustering(core, peers)))
        elif isinstance(core, FullAttention):
            cores.append((module, ShardedFullAttention(core, peers)))
        else:
            raise ValueError(
                "a shared sequence needs NeuralClusteringAttention or FullAttention, "
                f"got {type(core).__name__}"
            )
    for module, core in cores:
        module.core = core
    return network


def sum_gradients(network: nn.Module, peers: Peers) -> None:
    """Add up the gradients of all parameters over the processes, after `backward`.

    They are then those of the sum of all processes' losses.
    """
    for parameter in network.parameters():
        if parameter.grad is not None:
            parameter.grad = peers.total(parameter.grad)
