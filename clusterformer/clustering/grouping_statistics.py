"""Statistics of groupings: cluster sizes, dead clusters, and purity of blocks.

B batch   H heads   N tokens   C clusters
"""

from typing import NamedTuple

import torch
from torch import Tensor

from clusterformer.kernels.blocks import Blocks, window_mask, windows


class GroupingStatistics(NamedTuple):
    """Statistics of a grouping, as means over the sequences of a batch.

    Attributes:
        entropy: Entropy of the cluster sizes, as a share of log min(C, tokens): 1 if all are equal,
            0 if one has all.
        largest: Share of tokens in the largest cluster.
        dead: Number of clusters without a token, as a share of min(C, tokens).
        purity: Share of visible query-key pairs that are of one cluster; None without blocks.
    """

    entropy: Tensor
    largest: Tensor
    dead: Tensor
    purity: Tensor | None


def cluster_sizes(assignment: Tensor, num_clusters: int, mask: Tensor) -> Tensor:
    """Count real tokens of each cluster, (B, C), from assignment (B, N) and mask (B, N)."""
    shape = assignment.shape[0], num_clusters + 1
    counts = torch.zeros(shape, dtype=torch.float32, device=assignment.device)
    kept = assignment.masked_fill(~mask, num_clusters)
    return counts.scatter_add(1, kept, torch.ones_like(kept, dtype=counts.dtype))[:, :-1]


def grouping_statistics(
    assignment: Tensor, num_clusters: int, mask: Tensor, blocks: Blocks | None = None
) -> GroupingStatistics:
    """Measure a grouping.

    Args:
        assignment: (B, N), or (B, H, N), where each head counts as a sequence.
        num_clusters: C.
        mask: (B, N), True at real tokens. Sequences without any do not count.
        blocks: Blocks of the tokens, for the purity.
    """
    if assignment.dim() == 3:
        mask = mask[:, None].expand_as(assignment).flatten(0, 1)
        assignment = assignment.flatten(0, 1)
        if blocks is not None and len(blocks.slot) != len(assignment):  # blocks of hash rounds
            blocks = None
    real = mask.any(-1)
    counts = cluster_sizes(assignment, num_clusters, mask)
    sizes = counts.sum(-1, keepdim=True)
    shares = counts / sizes.clamp(min=1)
    room = sizes[:, 0].clamp(1, num_clusters)
    entropy = torch.special.entr(shares).sum(-1) / room.log().clamp(min=1e-9)
    entropy = torch.where(room > 1, entropy, torch.ones_like(entropy))
    dead = (room - (counts > 0).sum(-1)).clamp(min=0) / room
    purity = None if blocks is None else _purity(assignment, blocks)

    def mean(each: Tensor) -> Tensor:  # no selection, at which a GPU would wait
        return each.masked_fill(~real, 0.0).sum() / real.sum()

    return GroupingStatistics(
        mean(entropy),
        mean(shares.amax(-1)),
        mean(dead),
        None if purity is None else mean(purity),
    )


def _purity(assignment: Tensor, blocks: Blocks) -> Tensor:
    cluster = assignment.gather(1, blocks.members.flatten(1)).view(blocks.members.shape)
    own = cluster[:, blocks.own, :, None]
    pairs = window_mask(blocks) & blocks.own_filled[..., None]
    same = (own == windows(cluster, blocks.visible.shape[-1])[:, :, None]) & pairs
    return same.sum((1, 2, 3)).float() / pairs.sum((1, 2, 3)).clamp(min=1)
