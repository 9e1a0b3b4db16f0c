"""Groupings of a batch by the layers of a network: stacks, their losses, what their tokens see.

B batch   N tokens
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from clusterformer.attention import AttentionCore, Grouping, NeuralClusteringAttention
from clusterformer.losses import Auxiliary, ClusteringForm, auxiliary
from clusterformer.models.transformer import Output
from clusterformer.sequence_parallel.parallel_clustering import ParallelClustering


class StackGroupings(NamedTuple):
    """Groupings of the layers of an encoder or decoder, and the tokens that they group.

    Attributes:
        name: "" for an encoder or a single stack, "decoder/" for the decoder beside an encoder.
        groupings: One a layer.
        mask: (B, N), True at real tokens.
        cores: Mechanism of self-attention of each layer; empty where it is not known.
    """

    name: str
    groupings: list[Grouping | None]
    mask: Tensor
    cores: Sequence[AttentionCore] = ()

    @property
    def sequences(self) -> Tensor:
        """Sequences (B,) that this process counts: shared ones are counted by the first."""
        real = self.mask.any(-1)
        first = all(c.group.rank == 0 for c in self.cores if isinstance(c, ParallelClustering))
        return real if first else torch.zeros_like(real)

    def auxiliary(self, form: ClusteringForm) -> Auxiliary:
        """Sum the auxiliary losses; 0 where layers cluster, but every text is short.

        So a text's losses depend on no other text, and all processes have the same losses.
        """
        clustering = [core for core in self.cores if isinstance(core, NeuralClusteringAttention)]
        found = auxiliary(self.groupings, self.mask, form, self.sequences, len(clustering))
        if found.clustering is None and clustering:
            weight = clustering[0].space.weight
            if isinstance(weight, DTensor):  # its layer has seen to the gradient
                weight = torch.zeros(1, device=weight.device)
            nothing = 0.0 * weight.sum()
            return Auxiliary(nothing, nothing)
        return found

    @torch.no_grad()
    def keys_seen(self) -> list[Tensor | None]:
        """Compute for each layer the share of tokens that each token attends to, (B, N).

        None for a layer whose mechanism does not say; see `clusterformer.attention.visibility`.
        """
        return [
            core.keys_seen(grouping, self.mask)
            for core, grouping in zip(self.cores, self.groupings, strict=False)
        ]


def stacks(output: Output, batch: Any) -> list[StackGroupings]:
    """List the stacks of a network; beside a decoder's output, `batch` has `decoder_mask`."""
    encoded, decoded = output.encoded, output.decoded
    found = [StackGroupings("", encoded.groupings, batch.mask, encoded.cores)]
    if decoded is not None:
        name, mask = "decoder/", batch.decoder_mask
        found.append(StackGroupings(name, decoded.groupings, mask, decoded.cores))
    return found


def keys_seen(found: Iterable[StackGroupings]) -> tuple[Tensor, Tensor] | None:
    """Sum the shares of tokens that a token attends to, over real tokens and layers.

    Self-attention counts, of encoder and decoder; a decoder's attention to its memory does not.

    Returns:
        The sum and the number of its terms; None where no layer says what it sees.
    """
    terms = [
        (seen.sum(), stack.mask.sum())
        for stack in found
        for seen in stack.keys_seen()
        if seen is not None
    ]
    if not terms:
        return None
    sums, counts = zip(*terms, strict=True)
    return torch.stack(sums).sum(), torch.stack(counts).sum()
