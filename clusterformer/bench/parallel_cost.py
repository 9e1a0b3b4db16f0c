"""Model of what a layer costs whose sequence many GPUs share: bytes over links, operations, time.

N tokens   n = N / P tokens of a GPU   P GPUs   E model width   A additional columns
C clusters   F width of the clustering space   S slots of a block   J blocks that a block sees
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from clusterformer.bench.roofline import DATA_SHEETS

GIGA = 1e9


class SharedLayer(NamedTuple):
    """One attention layer, forward and backward, over one sequence.

    Attributes:
        length: N.
        gpus: P.
        d_model: E.
        num_heads: Attention heads.
        num_clusters: C.
        width: F, and A of the coupled form.
        block: S.
        reach: J.
        number_bytes: Bytes of a number that is sent.
    """

    length: int
    gpus: int
    d_model: int = 4096
    num_heads: int = 32
    num_clusters: int = 1024
    width: int = 16
    block: int = 128
    reach: int = 3
    number_bytes: int = 2

    @property
    def share(self) -> float:
        return self.length / self.gpus

    @property
    def away(self) -> float:
        """Share of a GPU's rows that another one needs, if it does not matter which."""
        return 1 - 1 / self.gpus

    def ring_bytes(self) -> float:
        """Bytes sent by a GPU in ring attention (Liu et al., 2023).

        Keys and values go around; in the backward pass their gradients too.
        """
        return 6 * (self.gpus - 1) * self.share * self.d_model * self.number_bytes

    def ulysses_bytes(self) -> float:
        """Bytes sent by a GPU in DeepSpeed-Ulysses (Jacobs et al., 2023).

        Queries, keys, values and outputs change between tokens and heads; so do their gradients.
        """
        return 8 * self.away * self.share * self.d_model * self.number_bytes

    def clusters_bytes(self) -> float:
        """Bytes sent by a GPU in `clusterformer.sequence_parallel`, forward and backward.

        Rows of queries, keys, values and columns go to the GPU of their block, values come back;
        the blocks next to a GPU's come too. Each token's cluster (int64) and mask (one byte) goes
        to all; maxima, normalisers and sums of the centroids are reduced in fp32.
        """
        e, columns, i = self.d_model, 2 * self.width, self.number_bytes
        rows = 2 * (4 * e + columns) * self.away * self.share * i
        beside = 2 * (3 * e + columns) * (self.reach - 1) * self.block * i
        indices = 9 * (self.gpus - 1) * self.share
        centroids = 2 * self.away * self.num_clusters * (2 * (self.width + 1) + 1) * 4
        return rows + (beside if self.gpus > 1 else 0) + indices + centroids

    def full_operations(self) -> float:
        """Operations of a GPU in full attention: 2 products forward, 5 backward."""
        return 14 * self.share * self.length * self.d_model

    def clusters_operations(self) -> float:
        """Operations of a GPU in blocks, and to assign tokens and average them (see `roofline`)."""
        blocks = 14 * self.share * self.reach * self.block * self.d_model
        return blocks + 120 * self.share * self.num_clusters * self.width


class Assumptions(NamedTuple):
    """Rates of a GPU and its link.

    Attributes:
        link: Bytes that a GPU sends in a second.
        utilisation: Share of the data sheet's matrix operations that attention reaches.
        latency: Seconds until a message arrives.
        device: GPU of `roofline.DATA_SHEETS`.
    """

    link: float
    utilisation: float = 0.4
    latency: float = 1e-5
    device: str = "h100"

    @property
    def rate(self) -> float:
        return self.utilisation * DATA_SHEETS[self.device].matrix


def predict(layer: SharedLayer, at: Assumptions) -> dict[str, float | None]:
    """Predict the seconds of forward and backward; None where there are more GPUs than heads.

    A ring sends while it computes. All-to-all does not: nothing can be computed before.
    """
    rounds = 2 * (layer.gpus - 1) * at.latency
    full = layer.full_operations() / at.rate
    # each GPU builds the blocks of the whole sequence: some 20 passes over integers in its memory
    blocks = 20 * 8 * layer.length / DATA_SHEETS[at.device].memory
    return {
        "ring": max(full, layer.ring_bytes() / at.link + rounds),
        "ulysses": None
        if layer.gpus > layer.num_heads
        else full + layer.ulysses_bytes() / at.link + 4 * at.latency,
        "clusters": layer.clusters_operations() / at.rate
        + layer.clusters_bytes() / at.link
        + blocks
        + 8 * at.latency,
    }


def table(
    shares: Iterable[int], gpus: Iterable[int], links: Iterable[float]
) -> Iterator[list[str]]:
    """Yield the rows of a table: GPUs, tokens of each, tokens, GB/s, milliseconds of each way.

    Args:
        shares: Tokens of each GPU.
        gpus: Numbers of GPUs.
        links: GB/s.
    """
    for share in shares:
        for number in gpus:
            for link in links:
                layer = SharedLayer(share * number, number)
                found = predict(layer, Assumptions(link * GIGA))
                times = [_milliseconds(seconds) for seconds in found.values()]
                yield [f"{number:,}", f"{share:,}", f"{layer.length:,}", f"{link:.0f}", *times]


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:,.3g}"
