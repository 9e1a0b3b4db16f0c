"""Merging of clusters, such that neighbours say as much as possible about each other.

C clusters
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

_LEAST_SHARE = 1 / 3  # of the largest one
_CLEAR = 1.2  # least rise of the share of loss that says that clusters are apart
_WORTH = 0.03  # share of the modularity that such a rise is worth


class Merge(NamedTuple):
    """Two clusters that become one.

    Attributes:
        kept: Index of the cluster that gets the points of both.
        gone: Index of the other one.
        loss: Information that the merge loses, in nats.
        split: Entropy of the choice between the two, in nats: what the merge could lose at most.
        modularity: Share of neighbours in one cluster before the merge, minus the share of random
            pairs there (Newman and Girvan, 2004).
    """

    kept: int
    gone: int
    loss: float
    split: float
    modularity: float


def merges_above_chance(joint: Tensor) -> Iterator[tuple[int, int]]:
    """Merge clusters whose points are neighbours most above chance, J_ab / (s_a s_b).

    Args:
        joint: (C, C), symmetric: sums of memberships of neighbours.

    Yields:
        The cluster that is kept and the one that is gone, C - 1 times.
    """
    joint = joint.double().cpu().clone()
    sizes = joint.sum(1)
    alive = torch.ones(len(joint), dtype=torch.bool)
    for _ in range(len(joint) - 1):
        lift = joint / (sizes[:, None] * sizes).clamp(min=1e-300)
        lift[~alive] = lift[:, ~alive] = -1.0
        kept, gone = divmod(int(lift.fill_diagonal_(-1.0).argmax()), len(joint))
        yield kept, gone
        joint[kept] += joint[gone]
        joint[:, kept] += joint[:, gone]
        sizes[kept] += sizes[gone]
        alive[gone] = False


def merges(joint: Tensor) -> Iterator[Merge]:
    """Merge clusters two by two until one is left, the least loss of information first.

    The clusters of a point and of its neighbour have the joint distribution J. Their information
    I = sum_ab J_ab log(J_ab / (s_a s_b)) is what training maximises. A merge of a and b loses

        I - I' = 2 sum_c [h(J_ac) + h(J_bc) - h(J_ac + J_bc)] - 2 [h(s_a) + h(s_b) - h(s_a + s_b)],

    h(x) = x log x, where c = a, b are one block. It is small where neighbours pass between a and b
    as if they were one cluster, and where they are small (agglomerative information bottleneck,
    Slonim and Tishby, 1999).

    Args:
        joint: (C, C), symmetric: sums of memberships of neighbours. Empty clusters go first.

    Yields:
        C - 1 merges; a cluster that is gone does not appear again.

    Cost: O(C^3) time, O(C^2) memory.
    """
    joint = joint.double().cpu()
    joint = joint / joint.sum().clamp(min=torch.finfo(joint.dtype).tiny)
    left = list(range(len(joint)))
    sums = _sums(joint)
    while len(left) > 1:
        loss = _losses(joint, sums)
        # of each pair the upper triangle, so that the first index is kept
        loss[torch.ones_like(loss, dtype=torch.bool).tril()] = torch.inf
        a, b = divmod(int(loss.argmin()), len(joint))
        sizes = joint.sum(1)
        modularity = float(joint.trace() - sizes.square().sum())
        sizes = sizes[[a, b]]
        split = float(h(sizes.sum()) - h(sizes).sum())
        yield Merge(left[a], left.pop(b), max(0.0, float(loss[a, b])), split, modularity)
        sums -= sum(h(column[:, None] + column) for column in (joint[:, a], joint[:, b]))
        joint[a] += joint[b]
        joint[:, a] += joint[:, b]
        rest = torch.arange(len(joint)) != b
        joint, sums = joint[rest][:, rest], sums[rest][:, rest]
        sums += h(joint[:, a, None] + joint[:, a])
        sums[a] = sums[:, a] = h(joint[a] + joint).sum(1)


def find_losses(joint: Tensor) -> Tensor:
    """Compute the loss of information of each merge, (C, C), of a joint distribution (C, C)."""
    return _losses(joint, _sums(joint))


def h(x: Tensor) -> Tensor:
    """Compute x log x."""
    return torch.xlogy(x, x)


def _sums(joint: Tensor) -> Tensor:
    """Sum h(J_ac + J_bc) over the third cluster c, (C, C)."""
    return torch.stack([h(row + joint).sum(1) for row in joint])


def _losses(joint: Tensor, sums: Tensor) -> Tensor:
    each, sizes, inside = h(joint), joint.sum(1), joint.diagonal()
    a, b = inside[:, None], inside
    rows = each.sum(1)
    # the terms of a and b themselves are one block
    others = rows[:, None] + rows - sums - (h(a) + 2 * each + h(b)) + h(a + joint) + h(joint + b)
    block = h(a) + h(b) + 2 * each - h(a + b + 2 * joint)
    ends = h(sizes)[:, None] + h(sizes) - h(sizes[:, None] + sizes)
    return 2 * others + block - 2 * ends


def natural_count(order: list[Merge]) -> int:
    """Choose a number of clusters from all the merges that leave one.

    Two measures are joined. Modularity says how many more neighbours share a cluster than random
    points do. It is largest at a number of clusters that suits the points, but too large a number
    where few points, or few columns, leave gaps within clusters.

    The other is what a merge loses. Within a cluster that is little information; the first merge of
    two clusters that are apart loses much more. But clusters grow as they merge, and large ones
    have more to lose: of C equal clusters, all apart, a merge of two loses 2 log(2) / C. So each
    loss is measured in this unit, C the number of clusters before the merge. Its rise is the ratio
    to the largest share before it; shares below a third of the largest of all count as that much,
    because the first merges join single points.

    A rise r is worth 3 % * log(r) / log(1.2) of the modularity: 3 % at 1.2, 6 % at 1.44. Merging
    stops before the rise whose worth exceeds the modularity missing there by most, if one of at
    least 1.2 does; else at the largest modularity.

    Args:
        order: C - 1 merges, as `merges` yields them.

    Returns:
        A number from 1 to C; from 2 if C is at least 2.
    """
    if len(order) < 2:
        return len(order) + 1
    first = len(order) + 1
    # without the constant 2 log(2), which changes no ratio
    shares = [merge.loss * (first - index) for index, merge in enumerate(order)]
    best = max(range(len(order)), key=lambda index: order[index].modularity)
    most = max(order[best].modularity, 1e-300)
    before, gain = max(shares) * _LEAST_SHARE, 0.0
    for index, (share, merge) in enumerate(zip(shares, order, strict=True)):
        rise = share / max(before, 1e-300)
        if index and rise >= _CLEAR:
            worth = _WORTH * math.log(rise, _CLEAR) - (1 - merge.modularity / most)
            if worth > gain:
                gain, best = worth, index
        before = max(before, share)
    return first - best
