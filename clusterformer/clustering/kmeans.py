"""K-means in a vector space: Lloyd's iterations, optionally with clusters of limited size.

B batch   N tokens (points)   D width   C clusters
"""

from typing import TypeVar

import torch
from torch import Tensor

from clusterformer.clustering.seeding import seeds
from clusterformer.kernels.grouping import sort
from clusterformer.kernels.ordering import count_up_to, stable_order
from clusterformer.kernels.reference import argmax_first
from clusterformer.kernels.rows import pick_rows, sum_rows

ROUNDING = 1e-6
"""Differences of squared distances, relative to squared norms, that count as rounding errors."""


def kmeans(
    points: Tensor,
    num_clusters: int,
    offset: Tensor,
    mask: Tensor | None = None,
    *,
    iterations: int = 3,
    cap: float | None = None,
) -> Tensor:
    """Cluster points by squared distance, all sequences at once, independently.

    Distances that differ by rounding errors are equal, and of equally near centroids the first
    wins. So a tie by symmetry, as between repeated tokens at rotary positions, has one result in
    every batch and in every order of summation.

    Starts from points drawn with chances in proportion to their squared norms, as k-means++ draws
    its first one (MuSe, Mitchell and Kersting, 2025, section 5). A cluster without points keeps
    its centroid.

    Args:
        points: (B, N, D).
        num_clusters: C. With no fewer clusters than points, each point has its own.
        offset: One random number in 0..1, which determines the draw.
        mask: (B, N), True at real points; None means all real.
        iterations: Number of Lloyd's iterations before the last assignment.
        cap: Maximum size of a cluster, as a multiple of n / C (n real points of a sequence); at
            least 1. None: no limit. A full cluster keeps its nearest points; the others go to the
            nearest cluster with room.

    Returns:
        (B, N) integer cluster of each point; any cluster at padding.

    Cost: O(N C D) an iteration. One node of a compiled graph. No gradients.
    """
    if torch.onnx.is_in_onnx_export():  # ONNX has no such node
        return _kmeans(points, num_clusters, offset, mask, iterations, cap)
    return _kmeans_op(points, num_clusters, offset, mask, iterations, cap)


def _kmeans(
    points: Tensor,
    num_clusters: int,
    offset: Tensor,
    mask: Tensor | None,
    iterations: int,
    cap: float | None,
) -> Tensor:
    batch, length, width = points.shape
    if mask is None:
        mask = torch.ones(batch, length, dtype=torch.bool, device=points.device)
    own = (mask.cumsum(-1) - 1).clamp(min=0)
    if not torch.onnx.is_in_onnx_export() and length <= num_clusters:
        return own
    points = points.float()
    squares = points.square().sum(-1)
    weights = squares + torch.finfo(squares.dtype).eps  # a zero vector is a point too
    weights = weights.masked_fill(~mask, 0.0)
    start = seeds(weights, num_clusters, offset)
    centroids = points.gather(1, start[..., None].expand(-1, -1, width))
    for _ in range(iterations):
        means, counts = cluster_means(points, nearest(points, centroids), num_clusters, mask)
        centroids = torch.where(counts > 0, means, centroids)
    if cap is None:
        assignment = nearest(points, centroids)
    else:
        margin = _margin(points, centroids)
        assignment = _assign_capped(_closeness(points, centroids), margin, squares / 2, mask, cap)
    return torch.where(mask.sum(-1, keepdim=True) <= num_clusters, own, assignment)


_kmeans_op = torch.library.custom_op("clusterformer::kmeans", _kmeans, mutates_args=())


@_kmeans_op.register_fake
def _(points: Tensor, *_others: object, **_options: object) -> Tensor:
    return points.new_empty(points.shape[:2], dtype=torch.long)


def nearest(points: Tensor, centroids: Tensor) -> Tensor:
    """Find the index (B, N) of the centroid (B, C, D) nearest to each point (B, N, D).

    Of equally near centroids, but for `ROUNDING`, it is the first.
    """
    return argmax_first(_closeness(points, centroids), -1, _margin(points, centroids))


def cluster_means(
    points: Tensor, assignment: Tensor, num_clusters: int, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute mean (B, C, D) and number (B, C, 1) of the points (B, N, D) of each cluster.

    A cluster without points has the mean 0. Gradients flow to the points.
    """
    batch, _, width = points.shape
    flat = _flat(assignment, num_clusters)
    weights = torch.ones_like(points[..., :1]) if mask is None else mask[..., None].float()
    if mask is not None:
        points = points.masked_fill(~mask[..., None], 0.0)
    counts, sums = (
        sum_rows(batch * num_clusters, flat, x.flatten(0, 1)) for x in (weights, points)
    )
    means = sums / counts.clamp(min=1)
    return means.view(batch, num_clusters, width), counts.view(batch, num_clusters, 1)


def spread(cluster_rows: Tensor, assignment: Tensor) -> Tensor:
    """Copy the row of each cluster to its points: (B, C, D) to (B, N, D)."""
    flat = _flat(assignment, cluster_rows.shape[1])
    return pick_rows(cluster_rows.flatten(0, 1), flat).view(*assignment.shape, -1)


Number = TypeVar("Number", int, Tensor)


def cluster_capacity(length: Number, num_clusters: int, cap: float) -> Number:
    """Return the maximum size of a cluster of `length` points: cap * length / C, rounded up."""
    hundredths = round(100 * cap)
    share = 100 * num_clusters
    return (length * hundredths + share - 1) // share  # ONNX rounds a negative quotient up


def _closeness(points: Tensor, centroids: Tensor) -> Tensor:
    """(|x|^2 - |x - c|^2) / 2 = x . c - |c|^2 / 2, (B, N, C): the larger, the nearer."""
    offsets = centroids.square().sum(-1)[:, None] / 2
    return torch.baddbmm(offsets, points, centroids.transpose(1, 2), beta=-1)


def _margin(points: Tensor, centroids: Tensor) -> Tensor:
    """Bound the rounding errors of `_closeness`, (B, N, 1)."""
    largest = centroids.square().sum(-1).amax(-1)[:, None, None]
    return ROUNDING * (points.square().sum(-1, keepdim=True) + largest)


def _assign_capped(
    closeness: Tensor, margin: Tensor, offset: Tensor, mask: Tensor, cap: float
) -> Tensor:
    """Assign points to the nearest clusters with room: two rounds of choices, then any room.

    Args:
        closeness: (B, N, C).
        margin: (B, N, 1), differences of closeness that are rounding errors.
        offset: (B, N), subtracted from closeness to make it comparable between points.
        mask: (B, N), True at real points.
        cap: Maximum size of a cluster, as a multiple of n / C.
    """
    num_clusters = closeness.shape[-1]
    room = cluster_capacity(mask.sum(-1, keepdim=True), num_clusters, cap).expand(-1, num_clusters)
    waiting, assignment = mask, torch.zeros_like(mask, dtype=torch.long)
    for _ in range(2):
        open_only = closeness.masked_fill((room <= 0)[:, None], float("-inf"))
        choice = argmax_first(open_only, -1, margin).masked_fill(~waiting, num_clusters)
        preference = open_only.amax(-1) - offset
        taken, counts = _admit(choice, _order(preference, margin[..., 0]), room)
        assignment = torch.where(taken, choice, assignment)
        waiting, room = waiting & ~taken, room - counts
    free = room.cumsum(-1)
    rank = waiting.cumsum(-1) - 1
    anywhere = count_up_to(free, rank).clamp(max=num_clusters - 1)
    return torch.where(waiting, anywhere, assignment)


def _order(preference: Tensor, margin: Tensor) -> Tensor:
    """Sort points (B, N) by falling preference; by position where the difference is rounding."""
    order = stable_order(preference, descending=True)
    sorted_preference, margin = preference.gather(1, order), margin.gather(1, order)
    falls = sorted_preference[:, :-1] - sorted_preference[:, 1:] > margin[:, 1:]
    level = torch.nn.functional.pad(falls.long(), (1, 0)).cumsum(-1)
    return stable_order(torch.empty_like(order).scatter_(1, order, level))


def _admit(choice: Tensor, order: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """Admit points to the cluster of their choice, the first of `order` (B, N) first.

    Returns the mask of admitted points (B, N), and their number in each cluster (B, C).
    """
    grouped = sort(choice.gather(1, order), room.shape[1] + 1)
    start = grouped.counts.cumsum(1) - grouped.counts
    rank = torch.empty_like(choice).scatter_(1, order, grouped.inverse)
    rank = rank - start.gather(1, choice)
    limit = torch.nn.functional.pad(room, (0, 1)).gather(1, choice)
    return rank < limit, torch.minimum(grouped.counts[:, :-1], room.clamp(min=0))


def _flat(assignment: Tensor, num_clusters: int) -> Tensor:
    row = torch.arange(assignment.shape[0], device=assignment.device)[:, None]
    return (assignment + row * num_clusters).flatten()
