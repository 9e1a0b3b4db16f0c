"""A network whose attention runs over a shared sequence."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from clusterformer.attention.base import AttentionCore
from clusterformer.attention.full import FullAttention
from clusterformer.attention.multi_head import MultiHeadAttention
from clusterformer.attention.neural_clustering import NeuralClusteringAttention
from clusterformer.sequence_parallel.parallel_clustering import ParallelClustering
from clusterformer.sequence_parallel.parallel_full import ParallelFullAttention
from clusterformer.sequence_parallel.sequence_group import SequenceGroup
from clusterformer.sequence_parallel.shared_positions import SharedPositions

Network = TypeVar("Network", bound=nn.Module)


def parallelize(network: Network, group: SequenceGroup) -> Network:
    """Let the attention of a network run over sequences that several processes share, in place.

    Everything else in an encoder works on single tokens. Each process gives its tokens and gets
    their outputs. Rotary positions go on from process to process; other positions are added before,
    by who knows at which one the share of a process begins.

    Args:
        network: Network with `MultiHeadAttention`, such as an encoder.
        group: The processes.

    Raises:
        ValueError: if an attention has a short convolution, global tokens, exploration, several
            clusterings or clusters="k-means", or is causal="masked", or is neither full attention
            nor neural clustering attention, or if the processes do not divide the heads of full
            attention. Nothing has changed then.
    """
    layers = [module for module in network.modules() if isinstance(module, MultiHeadAttention)]
    if any(layer.convolution is not None for layer in layers):
        raise ValueError("a shared sequence needs short_convolution=0")
    kinds = [_parallel(layer.core, group) for layer in layers]
    for layer, kind in zip(layers, kinds, strict=True):  # the weights and their names stay
        layer.core.__class__ = kind
        assert isinstance(layer.core, ParallelClustering | ParallelFullAttention)
        layer.core.group = group
        if layer.rotary_base is not None:
            layer.__class__ = SharedPositions
            assert isinstance(layer, SharedPositions)
            layer.group = group
    return network


def _parallel(core: AttentionCore, group: SequenceGroup) -> type[AttentionCore]:
    """Return the class that computes a share of a mechanism."""
    if type(core) is NeuralClusteringAttention:
        if core.causal == "masked":
            raise ValueError('a shared sequence needs causal=True or False, got causal="masked"')
        for name, needed in (("global_tokens", 0), ("num_clusterings", 1), ("exploration", 0)):
            if getattr(core, name) != needed:
                found = getattr(core, name)
                raise ValueError(f"a shared sequence needs {name}={needed}, got {found}")
        if core.means is not None:
            raise ValueError('a shared sequence needs clusters="learnt" or "random", got "k-means"')
        return ParallelClustering
    if type(core) is FullAttention:
        if core.num_heads % group.size:
            raise ValueError(
                f"the number of processes must divide num_heads, got {group.size} processes with "
                f"num_heads = {core.num_heads}"
            )
        return ParallelFullAttention
    raise ValueError(
        "a shared sequence needs NeuralClusteringAttention or FullAttention, "
        f"got {type(core).__name__}"
    )


def sum_gradients(network: nn.Module, group: SequenceGroup) -> None:
    """Add up the gradients of all parameters over the processes, after `backward`.

    They are then those of the sum of all processes' losses. A process whose loss did not use a
    parameter, such as that of a head, counts as 0; one that no process used has no gradient.
    """
    parameters = list(network.parameters())
    if not parameters:
        return
    used = [float(parameter.grad is not None) for parameter in parameters]
    anywhere = group.maximum(torch.tensor(used, device=parameters[0].device)).tolist()
    for parameter, used_somewhere in zip(parameters, anywhere, strict=True):
        if used_somewhere:
            own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = group.total(own)
