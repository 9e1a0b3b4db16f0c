"""K-means on hash codes: Lloyd's iterations in Hamming space.

B batch   N points   C clusters
"""

import torch
from torch import Tensor

from clusterformer.clustering.hashing import unpack
from clusterformer.clustering.seeding import seeds

_CPU_HAS_BFLOAT16 = torch.cpu.get_capabilities().get("avx512_bf16", False)


def hamming_kmeans(
    codes: Tensor, num_clusters: int, mask: Tensor | None = None, iterations: int = 10
) -> Tensor:
    """Cluster codes by Hamming distance (clustered attention, Vyas et al., 2020, section 3.2.2).

    Starts from real points at equal steps. A bit of a centroid is the majority of its points; of
    equally near centroids the first wins; a cluster without points keeps its centroid. Sequences
    are clustered at once, independently.

    Args:
        codes: (B, N) int64, from `SignHash`.
        num_clusters: C. With no fewer clusters than real points, each different code has its own.
            With fewer, codes may share one even if they are few: repeated codes start several.
        mask: (B, N), True at real points; None means all real.
        iterations: Number of Lloyd's iterations before the last assignment.

    Returns:
        (B, N) integer cluster of each point; any cluster at padding.

    The distance of codes of +1 and -1 is (64 - their inner product) / 2, so the nearest centroid
    comes from a matrix product, exact in bfloat16 too: a tenth of the time of counting bits in
    packed integers, for which PyTorch has no operation. Cost: O(N C) an iteration. One node of
    a compiled graph.
    """
    if torch.onnx.is_in_onnx_export():  # ONNX has no such node
        return _kmeans(codes, num_clusters, mask, iterations)
    return _kmeans_op(codes, num_clusters, mask, iterations)


def _kmeans(codes: Tensor, num_clusters: int, mask: Tensor | None, iterations: int) -> Tensor:
    exporting = torch.onnx.is_in_onnx_export()
    batch, length = codes.shape
    signs = unpack(codes)
    signs[..., -1] = 1.0  # the sign bit of int64 is free: it counts points
    weights = torch.ones_like(codes, dtype=torch.float32) if mask is None else mask.float()
    if mask is not None:
        signs = signs * weights[..., None]
    start = seeds(weights, num_clusters, 0.5)
    centroids = signs.gather(1, start[..., None].expand(-1, -1, signs.shape[-1]))
    fast = (codes.device.type != "cpu" or _CPU_HAS_BFLOAT16) and not exporting
    points = signs.to(torch.bfloat16 if fast else torch.float32)  # exact in both
    row = torch.arange(batch, device=codes.device)[:, None] * num_clusters
    flat, total = signs.flatten(0, 1), torch.empty_like(centroids).flatten(0, 1)
    if not exporting and length <= num_clusters:
        iterations = 0  # each point starts a cluster, and no centroid would move
    for _ in range(iterations):
        assignment = _nearest(points, centroids)
        total = total.zero_().index_add_(0, (assignment + row).flatten(), flat)
        sums = total.view(centroids.shape)
        majority = (sums - 0.5).sign_()  # a tie is -1
        centroids = torch.where(sums[..., -1:] > 0, majority, centroids)
    return _nearest(points, centroids)


_kmeans_op = torch.library.custom_op("clusterformer::hamming_kmeans", _kmeans, mutates_args=())


@_kmeans_op.register_fake
def _(codes: Tensor, *_others: object, **_options: object) -> Tensor:
    return torch.empty_like(codes)


def _nearest(points: Tensor, centroids: Tensor) -> Tensor:
    """Find the index (B, N) of the largest inner product, the first of equals.

    Product and index form one number, the index in its low digits: a maximum is several times
    faster than an argmax.
    """
    num_clusters = centroids.shape[1]
    products = torch.bmm(points, centroids.to(points.dtype).transpose(1, 2))
    backwards = torch.arange(num_clusters - 1, -1, -1, dtype=torch.float32, device=points.device)
    best = products.float().mul_(num_clusters).add_(backwards).amax(-1)
    return (num_clusters - 1 - best.remainder_(num_clusters)).long()
