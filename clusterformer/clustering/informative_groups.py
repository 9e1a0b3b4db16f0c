"""Groups of small clusters that say as much as possible about a point's neighbours.

C clusters   G groups
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.clustering.merging import find_losses, h, merges

_MOVES = 2**20  # C G^2 up to which single clusters move
_EXCHANGES = 2**17  # C G^2 up to which groups are split and joined too
_TRIED = 20  # exchanges that are followed to their end, in each round
_RANDOM = 4  # searches from random groups
_LEAST_GAIN = 1e-9  # nats


class _Groups(NamedTuple):
    """Groups, the most informative found so far.

    Attributes:
        of: Group of each cluster, (C,).
        information: I of the groups, in nats.
    """

    of: Tensor
    information: float


def informative_groups(joint: Tensor, count: int) -> Tensor:
    """Join clusters to groups, such that the group of a point says most about its neighbour's.

    `merges` begins: the least loss of information first. A merge is never undone there, so the
    groups are improved while that raises the information: clusters move to another group, one by
    one; and one group is split in two where two others become one. This ends where no such step
    helps, which need not be the best, so four more searches begin at random groups, always the
    same, and the most informative groups of all are kept (docs/results/mnist.md).

    Args:
        joint: (C, C), symmetric: numbers of pairs of neighbours in two clusters.
        count: G, at most C.

    Returns:
        The group of each cluster, (C,), from 0 to G - 1; each group has a cluster.

    Cost: O(C^3) time, and O(C G^2) a move. Where C G^2 is above 2^17, groups are not split and
    none are random; above 2^20 nothing is improved.
    """
    joint = joint.double().cpu()
    joint = joint / joint.sum().clamp(min=torch.finfo(joint.dtype).tiny)
    group = _merged(joint, count)
    if not 1 < count < len(joint) or len(joint) * count**2 > _MOVES:
        return group
    if len(joint) * count**2 > _EXCHANGES:
        return _move(joint, group, count).of
    generator = torch.Generator().manual_seed(0)
    orders = (torch.randperm(len(joint), generator=generator) for _ in range(_RANDOM))
    starts = [group, *(order % count for order in orders)]
    found = [_search(joint, start, count) for start in starts]
    return max(found, key=lambda groups: groups.information).of


def _merged(joint: Tensor, count: int) -> Tensor:
    """Join clusters by the least loss of information, (C,)."""
    group = torch.arange(len(joint))
    for merge in itertools.islice(merges(joint), len(joint) - count):
        group[group == merge.gone] = merge.kept
    return group.unique(return_inverse=True)[1]


def _between(joint: Tensor, group: Tensor, count: int) -> Tensor:
    """Sum pairs between groups, (G, G)."""
    member = F.one_hot(group, count).double()
    return member.T @ joint @ member


def _information(joint: Tensor) -> float:
    return float(h(joint).sum() - 2 * h(joint.sum(1)).sum())


def _search(joint: Tensor, group: Tensor, count: int) -> _Groups:
    """Improve groups by moves and exchanges, while one gains."""
    best = _move(joint, group, count)
    while True:
        tried = [_move(joint, group, count) for group in _exchanges(joint, best.of, count)]
        found = max(tried, key=lambda groups: groups.information, default=best)
        if found.information <= best.information + _LEAST_GAIN:
            return best
        best = found


def _move(joint: Tensor, group: Tensor, count: int) -> _Groups:
    """Move single clusters, the largest gain first, while one gains."""
    group, clusters = group.clone(), torch.arange(len(joint))
    while True:
        gains = _gains(joint, group, count)
        gains[clusters, group] = 0.0
        cluster, to = divmod(int(gains.argmax()), count)
        if not gains[cluster, to] > _LEAST_GAIN:
            return _Groups(group, _information(_between(joint, group, count)))
        group[cluster] = to


def _gains(joint: Tensor, group: Tensor, count: int) -> Tensor:
    """Compute the gain of information of each cluster's move to each group, (C, G).

    A move from a to b changes the rows and columns of a and b alone.
    """
    member = F.one_hot(group, count).double()
    row = joint @ member  # of each cluster with each group
    between, size, inside = member.T @ row, joint.sum(1), joint.diagonal()[:, None]
    a_row, sizes = between[group], row.sum(0)
    a_own, a_pairs = (x.gather(1, group[:, None]) for x in (row, a_row))
    left = h((a_row - row).clamp(min=0)) - h(a_row)
    came = h(between + row[:, None]) - h(between)  # (C, G, G): of b with each group
    # all other groups, without a and b themselves
    to_a = group[:, None, None].expand(-1, count, 1)
    others = left.sum(1, keepdim=True) - left - left.gather(1, group[:, None])
    others = others + came.sum(2) - came.diagonal(dim1=1, dim2=2) - came.gather(2, to_a)[..., 0]
    b_pairs = between.diagonal()
    gain = 2 * others + h((a_pairs - 2 * a_own + inside).clamp(min=0)) - h(a_pairs)
    gain = gain + h(b_pairs + 2 * row + inside) - h(b_pairs)
    gain = gain + 2 * (h((a_row - row + a_own - inside).clamp(min=0)) - h(a_row))
    a_size, size = sizes[group][:, None], size[:, None]
    ends = h((a_size - size).clamp(min=0)) - h(a_size) + h(sizes + size) - h(sizes)
    return gain - 2 * ends


def _exchanges(joint: Tensor, group: Tensor, count: int) -> list[Tensor]:
    """Split a group in two and join two others: the most informative results, (C,) each."""
    found: list[tuple[float, Tensor]] = []
    for split in range(count):
        clusters = (group == split).nonzero()[:, 0]
        if len(clusters) < 2:
            continue
        more = group.clone()
        more[clusters[_merged(joint[clusters][:, clusters], 2) == 1]] = count
        between = _between(joint, more, count + 1)
        lost = find_losses(between).masked_fill(torch.ones_like(between).tril().bool(), torch.inf)
        lost[split, count] = torch.inf  # the two parts again
        losses, cells = lost.flatten().topk(min(_TRIED, lost.numel()), largest=False)
        information = _information(between)
        for loss, cell in zip(losses.tolist(), cells.tolist(), strict=True):
            if loss < torch.inf:
                kept, gone = divmod(cell, count + 1)
                joined = more.where(more != gone, kept)
                found.append((information - loss, joined.unique(return_inverse=True)[1]))
    found.sort(key=lambda each: each[0], reverse=True)
    return [joined for _, joined in found[:_TRIED]]
