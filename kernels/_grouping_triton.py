"""Assign and sort in Triton: no matrix of tokens by clusters in memory, no atomics.

B batch   N tokens   C clusters   P width of the clustering space   T tiles of tokens
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from clusterformer.kernels.reference import Sorted
from clusterformer.kernels.tiles import padded

TILE = 64
"""Tokens a program."""

CENTROIDS = 32
"""Centroids that a program takes at a time."""


@triton.jit
def _scores(
    anchors, points, c_first, token, C, width, real, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """Similarities (tile, BLOCK_C) of a tile of tokens with a tile of centroids, float32."""
    column = tl.arange(0, BLOCK_P)
    cluster = c_first + tl.arange(0, BLOCK_C)
    x = tl.load(
        points + token[:, None] * width + column[None, :],
        mask=real[:, None] & (column < width)[None, :],
        other=0.0,
    )
    c = tl.load(
        anchors + cluster[:, None] * width + column[None, :],
        mask=(cluster < C)[:, None] & (column < width)[None, :],
        other=0.0,
    )
    return tl.dot(x, tl.trans(c), input_precision="ieee")


@triton.jit
def _normaliser_kernel(
    POINTS, ANCHORS, REAL, PARTIAL, N, C, T, width, anchor_batch,
    BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Log-sum-exp over one tile of tokens, for every centroid: the first of two passes.

    Traffic: points once, B C T numbers out; 2 B N C P operations.
    """
    tile = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    token = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    real = token < N
    real &= tl.load(REAL + batch * N + token, mask=real, other=0) != 0
    for first in range(0, C, BLOCK_C):
        scores = _scores(
            ANCHORS + batch * anchor_batch, POINTS + batch * N * width, first, token, C, width,
            real, BLOCK_P, BLOCK_C,
        )  # fmt: skip
        scores = tl.where(real[:, None], scores, float("-inf"))
        highest = tl.max(scores, 0)
        safe = tl.where(highest == float("-inf"), 0.0, highest)
        total = tl.sum(tl.exp(scores - safe[None, :]), 0)
        found = tl.where(total > 0, safe + tl.log(tl.where(total > 0, total, 1.0)), float("-inf"))
        cluster = first + tl.arange(0, BLOCK_C)
        tl.store(PARTIAL + (batch * T + tile) * C + cluster, found, mask=cluster < C)


@triton.jit
def _assign_kernel(
    POINTS, ANCHORS, REAL, NORMALISER, ASSIGNMENT, N, C, width, anchor_batch,
    BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Cluster of each token of a tile, the first of equals: the second pass.

    Traffic: points once, B N integers out; 2 B N C P operations.
    """
    batch = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    real = token < N
    real &= tl.load(REAL + batch * N + token, mask=real, other=0) != 0
    best = tl.full([BLOCK_N], float("-inf"), tl.float32)
    chosen = tl.zeros([BLOCK_N], tl.int32)
    for first in range(0, C, BLOCK_C):
        scores = _scores(
            ANCHORS + batch * anchor_batch, POINTS + batch * N * width, first, token, C, width,
            real, BLOCK_P, BLOCK_C,
        )  # fmt: skip
        cluster = first + tl.arange(0, BLOCK_C)
        norm = tl.load(NORMALISER + batch * C + cluster, mask=cluster < C, other=float("inf"))
        scores = scores - norm[None, :]
        highest = tl.max(scores, 1)
        index = first + tl.argmax(scores, 1)
        better = highest > best
        chosen = tl.where(better, index, chosen)
        best = tl.where(better, highest, best)
    tl.store(ASSIGNMENT + batch * N + token, chosen.to(tl.int64), mask=token < N)


@triton.jit
def _count_kernel(ASSIGNMENT, COUNTS, N, C, T, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr):
    """How many tokens of a tile each cluster has. Traffic: B N integers in, B C T out."""
    tile = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    token = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    cluster = tl.load(ASSIGNMENT + batch * N + token, mask=token < N, other=-1)
    for first in range(0, C, BLOCK_C):
        kind = first + tl.arange(0, BLOCK_C)
        found = tl.sum((cluster[:, None] == kind[None, :]).to(tl.int32), 0)
        place = (batch * C + kind) * T + tile
        tl.store(COUNTS + place, found.to(tl.int64), mask=kind < C)


@triton.jit
def _place_kernel(ASSIGNMENT, STARTS, ORDER, INVERSE, N, C, T, BLOCK_N: tl.constexpr):
    """Where each token of a tile goes: behind those of its cluster that come before it."""
    tile = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    within = tl.arange(0, BLOCK_N)
    token = tile * BLOCK_N + within
    cluster = tl.load(ASSIGNMENT + batch * N + token, mask=token < N, other=-1)
    same = cluster[:, None] == cluster[None, :]
    rank = tl.sum((same & (within[None, :] < within[:, None])).to(tl.int32), 1)
    start = tl.load(STARTS + (batch * C + cluster) * T + tile, mask=token < N, other=0)
    place = start + rank
    tl.store(ORDER + batch * N + place, token.to(tl.int64), mask=token < N)
    tl.store(INVERSE + batch * N + token, place, mask=token < N)


def assign(
    points: Tensor, anchors: Tensor, key_mask: Tensor | None = None, *, normalised: bool = True
) -> Tensor:
    """argmax_i (S_ij - logsumexp_j' S_ij') of S = anchors points^T, (B, N); padding holds any.

    Args:
        points: (B, N, P).
        anchors: (C, P) or (B, C, P).
        key_mask: (B, N), True at real tokens.
        normalised: False leaves the log-sum-exp over tokens out.
    """
    batch, length, width = points.shape
    clusters = anchors.shape[-2]
    points, anchors = points.detach().float().contiguous(), anchors.detach().float().contiguous()
    real = points.new_ones(batch, length, dtype=torch.bool) if key_mask is None else key_mask
    tiles = triton.cdiv(length, TILE)
    stride = clusters * width if anchors.dim() == 3 else 0
    blocks = {"BLOCK_P": padded(width), "BLOCK_N": TILE, "BLOCK_C": CENTROIDS}
    arguments = points, anchors, real.contiguous()
    normaliser = points.new_zeros(batch, clusters)
    if normalised:
        partial = points.new_empty(batch, tiles, clusters)
        sizes = length, clusters, tiles, width, stride
        _normaliser_kernel[tiles, batch](*arguments, partial, *sizes, **blocks)
        normaliser = partial.logsumexp(1)
    assignment = points.new_empty(batch, length, dtype=torch.long)
    _assign_kernel[tiles, batch](
        *arguments, normaliser, assignment, length, clusters, width, stride, **blocks
    )
    return assignment


def sort(assignment: Tensor, num_clusters: int, key_mask: Tensor | None = None) -> Sorted:
    """Stable counting sort of tokens by cluster, padding behind all; see `reference`.

    O(N + C N / tile) time and memory.
    """
    batch, length = assignment.shape
    if key_mask is not None:
        assignment = assignment.masked_fill(~key_mask, num_clusters)
    assignment = assignment.contiguous()
    clusters, tiles = num_clusters + 1, triton.cdiv(length, TILE)
    counts = assignment.new_empty(batch, clusters, tiles)
    grid = tiles, batch
    sizes = length, clusters, tiles
    _count_kernel[grid](assignment, counts, *sizes, BLOCK_N=TILE, BLOCK_C=CENTROIDS)
    flat = counts.flatten(1)
    starts = (flat.cumsum(1) - flat).contiguous()
    order, inverse = torch.empty_like(assignment), torch.empty_like(assignment)
    _place_kernel[grid](assignment, starts, order, inverse, *sizes, BLOCK_N=TILE)
    return Sorted(order, inverse, counts.sum(-1)[:, :num_clusters])
