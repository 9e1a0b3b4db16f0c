"""Assigning and sorting: the public operations and their choice of a kernel.

B batch   N tokens   C clusters   F features (width of the clustering space)
"""

import torch
from torch import Tensor

from clusterformer.kernels import reference
from clusterformer.kernels.blocks import Sorted
from clusterformer.kernels.dispatch import use_triton


def assign(
    points: Tensor,
    anchors: Tensor,
    key_mask: Tensor | None = None,
    *,
    without_normalizer: bool = False,
) -> tuple[Tensor, Tensor]:
    """Assign tokens to clusters, and average points by membership (ClusterFormer, eq. 2-4).

    S = anchors points^T; U_ij = exp(S_ij - logsumexp_j' S_ij'); I_j = argmax_i U_ij.

    Args:
        points: X, (B, N, F).
        anchors: (C, F), or (B, C, F).
        key_mask: (B, N), True at real tokens; None means all real.
        without_normalizer: Choose argmax_i S_ij, which depends on no other token, as strict
            causality requires.

    Returns:
        The assignment (B, N), and the means U X (B, C, F), 0 for a sequence without a token.

    Cost: O(N C) memory without Triton; with it O(N), and O(C F) for every 1,024 tokens at most.
    O(N C F) time, with Triton F / 256 times that for the means of wide points.
    """
    if not use_triton(points.device):
        scores = anchors @ points.transpose(1, 2)
        assignment, memberships = reference.assign(scores, key_mask)
        if without_normalizer:
            assignment = reference.argmax_first(scores.detach(), 1)
        return assignment, memberships @ points
    from clusterformer.kernels import _grouping_triton, _means_triton

    points, anchors = points.float().contiguous(), anchors.float().contiguous()
    if key_mask is None:
        key_mask = points.new_ones(points.shape[:2], dtype=torch.bool)
    key_mask = key_mask.contiguous()
    means, normalizer = _means_triton.centroid_means(points, anchors, key_mask)
    subtracted = torch.zeros_like(normalizer) if without_normalizer else normalizer
    inputs = points.detach(), anchors.detach(), key_mask, subtracted.detach()
    return _grouping_triton.assign(*inputs), means


@torch.no_grad()
def explore(points: Tensor, anchors: Tensor, scale: float) -> Tensor:
    """Draw a cluster for each token, (B, N): argmax_i S_ij + scale * g_ij with Gumbel noise g.

    With scale 1, cluster i has the probability softmax_i S_ij (Gumbel-max trick). Each token draws
    for itself, without the normalizer over tokens of eq. 2, so strict causality holds.

    Args:
        points: X, (B, N, F).
        anchors: (C, F), or (B, C, F).
        scale: Above 0.
    """
    scores = anchors @ points.transpose(1, 2)
    noise = -torch.empty_like(scores).exponential_().log()
    return (scores + scale * noise).argmax(1)


def sort(assignment: Tensor, num_clusters: int, key_mask: Tensor | None = None) -> Sorted:
    """Sort tokens by cluster, stably, padding behind all clusters (eq. 5).

    Args:
        assignment: (B, N) integers in 0..C-1.
        num_clusters: C.
        key_mask: (B, N), True at real tokens; None means all real.
    """
    if not use_triton(assignment.device):
        return reference.sort(assignment, num_clusters, key_mask)
    from clusterformer.kernels import _grouping_triton

    return _grouping_triton.sort(assignment, num_clusters, key_mask)
