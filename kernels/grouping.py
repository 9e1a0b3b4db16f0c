"""Assign and sort: the public operations and their choice of a kernel.

B batch   N tokens   C clusters   P width of the clustering space
"""

import torch
from torch import Tensor

from clusterformer.kernels import reference
from clusterformer.kernels.blocks import Sorted
from clusterformer.kernels.dispatch import use_triton


def assign(
    points: Tensor, anchors: Tensor, key_mask: Tensor | None = None, *, alone: bool = False
) -> tuple[Tensor, Tensor]:
    """Cluster of each token, and the means U X of the memberships (ClusterFormer, eq. 2-4).

    S = anchors points^T; U_ij = exp(S_ij - logsumexp_j' S_ij'); I_j = argmax_i U_ij.

    Args:
        points: X, (B, N, P).
        anchors: (C, P), or (B, C, P).
        key_mask: (B, N), True at real tokens; None means all real.
        alone: Choose argmax_i S_ij, by the token alone, as strict causality wants.

    Returns:
        The assignment (B, N), and U X (B, C, P), 0 for a sequence without a token.

    Cost: O(N C) memory without Triton; with it O(N), and O(C P) for every 1,024 tokens at most.
    O(N C P) time, with Triton P / 256 times that for the means of wide points.
    """
    if not use_triton(points.device):
        scores = anchors @ points.transpose(1, 2)
        assigned = reference.assign(scores, key_mask)
        chosen = reference.place_of_largest(scores.detach(), 1) if alone else assigned.assignment
        return chosen, assigned.memberships @ points
    from clusterformer.kernels import _grouping_triton, _means_triton

    points, anchors = points.float().contiguous(), anchors.float().contiguous()
    if key_mask is None:
        key_mask = points.new_ones(points.shape[:2], dtype=torch.bool)
    key_mask = key_mask.contiguous()
    means, normaliser = _means_triton.centroid_means(points, anchors, key_mask)
    against = torch.zeros_like(normaliser) if alone else normaliser
    given = points.detach(), anchors.detach(), key_mask, against.detach()
    return _grouping_triton.assign(*given), means


def sort(assignment: Tensor, num_clusters: int, key_mask: Tensor | None = None) -> Sorted:
    """Stable sort of tokens by cluster, padding behind all clusters (eq. 5).

    Args:
        assignment: (B, N) integers in 0..C-1.
        num_clusters: C.
        key_mask: (B, N), True at real tokens; None means all real.
    """
    if not use_triton(assignment.device):
        return reference.sort(assignment, num_clusters, key_mask)
    from clusterformer.kernels import _grouping_triton

    return _grouping_triton.sort(assignment, num_clusters, key_mask)
