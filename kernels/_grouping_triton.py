"""Assign and sort in Triton: no matrix of tokens by clusters in memory, no atomics.

B batch   N tokens   C clusters   W width of the clustering space   T tiles of tokens
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from clusterformer.kernels.blocks import Sorted
from clusterformer.kernels.tiles import Device

TILE = 64
"""Tokens a program."""

CENTROIDS = 64
"""Centroids that a program takes at a time."""

COLUMNS = 16
"""Columns of points and centroids that it multiplies at a time."""


@triton.jit
def _scores(
    anchors, points, c_first, token, C, width, real,
    PRECISION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Similarities (tile, BLOCK_C) of a tile of tokens with a tile of centroids, float32."""
    cluster = c_first + tl.arange(0, BLOCK_C)
    scores = tl.zeros([token.shape[0], BLOCK_C], tl.float32)
    for first in range(0, width, BLOCK_P):
        column = first + tl.arange(0, BLOCK_P)
        inside = (column < width)[None, :]
        at = points + token[:, None] * width + column[None, :]
        x = tl.load(at, mask=real[:, None] & inside, other=0.0)
        at = anchors + cluster[:, None] * width + column[None, :]
        c = tl.load(at, mask=(cluster < C)[:, None] & inside, other=0.0)
        scores += tl.dot(x, tl.trans(c), input_precision=PRECISION)
    return scores


@triton.jit
def _assign_kernel(
    POINTS, ANCHORS, REAL, NORMALISER, ASSIGNMENT, N, C, width, anchor_batch,
    PRECISION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Cluster of each token of a tile, the first of equals.

    Traffic: B N (4 W + 9) bytes; 2 B N C W operations in float32.
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
            real, PRECISION, BLOCK_P, BLOCK_C,
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
    """How many tokens of a tile each cluster has.

    Traffic: B N (8 + C / 8) bytes.
    """
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
    """Where each token of a tile goes: behind those of its cluster that come before it.

    Traffic: B N 32 bytes.
    """
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


@torch.library.custom_op("clusterformer::assign_triton", mutates_args=())
def assign(points: Tensor, anchors: Tensor, real: Tensor, normaliser: Tensor) -> Tensor:
    """argmax_i (S_ij - normaliser_i), (B, N), of S = anchors points^T; padding holds any.

    Args:
        points: (B, N, W), float32 and contiguous, as are all of these.
        anchors: (C, W) or (B, C, W).
        real: (B, N), True at real tokens.
        normaliser: (B, C), from `centroid_means`.
    """
    batch, length, width = points.shape
    clusters, tiles = anchors.shape[-2], triton.cdiv(length, TILE)
    assignment = points.new_empty(batch, length, dtype=torch.long)
    _assign_kernel[tiles, batch](
        points, anchors, real, normaliser, assignment, length, clusters, width, _stride(anchors),
        **_blocks(points),
    )  # fmt: skip
    return assignment


@assign.register_fake
def _(points: Tensor, anchors: Tensor, real: Tensor, normaliser: Tensor) -> Tensor:
    return points.new_empty(points.shape[:2], dtype=torch.long)


def _stride(anchors: Tensor) -> int:
    """Numbers from one sequence's anchors to the next one's; 0 where all share them."""
    return anchors.shape[1] * anchors.shape[2] if anchors.dim() == 3 else 0


def _blocks(points: Tensor) -> dict[str, Any]:
    precision = Device.of(points.device).exact
    return {"PRECISION": precision, "BLOCK_P": COLUMNS, "BLOCK_N": TILE, "BLOCK_C": CENTROIDS}


def sort(assignment: Tensor, num_clusters: int, key_mask: Tensor | None = None) -> Sorted:
    """Stable counting sort of tokens by cluster, padding behind all; see `reference`."""
    return Sorted(*_sort(assignment, num_clusters, key_mask))


@torch.library.custom_op("clusterformer::sort_triton", mutates_args=())
def _sort(
    assignment: Tensor, num_clusters: int, key_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Order, inverse and counts.

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
    return order, inverse, counts.sum(-1)[:, :num_clusters].contiguous()


@_sort.register_fake
def _(
    assignment: Tensor, num_clusters: int, key_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    order, inverse = (assignment.new_empty(assignment.shape) for _ in range(2))
    return order, inverse, assignment.new_empty(assignment.shape[0], num_clusters)
