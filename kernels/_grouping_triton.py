"""Assign and sort in Triton: no matrix of tokens by clusters in memory, no atomics.

B batch   N tokens   C clusters   F features (width of the clustering space)
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from clusterformer.kernels._grid_triton import row_of_program, spread_rows
from clusterformer.kernels.blocks import Sorted
from clusterformer.kernels.tiles import Device

TILE = 64
"""Tokens per program."""

CENTROIDS = 64
"""Centroids that a program compares at a time."""

COLUMNS = 16
"""Columns of points and centroids that a program multiplies at a time."""


@triton.jit
def _scores(
    anchors, points, c_first, token, C, width, real, PRECISION: tl.constexpr, BLOCK_F: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Similarities (tile, BLOCK_C) of a tile of tokens with a tile of centroids, float32."""
    cluster = c_first + tl.arange(0, BLOCK_C)
    b_s = tl.zeros([token.shape[0], BLOCK_C], tl.float32)
    for first in range(0, width, BLOCK_F):
        column = first + tl.arange(0, BLOCK_F)
        inside = (column < width)[None, :]
        at = points + token[:, None] * width + column[None, :]
        b_x = tl.load(at, mask=real[:, None] & inside, other=0.0)
        at = anchors + cluster[:, None] * width + column[None, :]
        b_c = tl.load(at, mask=(cluster < C)[:, None] & inside, other=0.0)
        b_s += tl.dot(b_x, tl.trans(b_c), input_precision=PRECISION)
    return b_s


@triton.jit
def _assign_kernel(
    p_points, p_anchors, p_real, p_normalizer, p_assignment, N, C, width, anchor_batch,
    PRECISION: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Find the cluster of each token of a tile, the first of equals.

    Traffic: B N (4 F + 9) bytes; 2 B N C F operations in float32.
    """
    batch = row_of_program()
    start = tl.program_id(0) * BLOCK_N
    first_token = batch * N + start
    token = tl.arange(0, BLOCK_N)
    inside = token < N - start
    real = inside & (tl.load(p_real + first_token + token, mask=inside, other=0) != 0)
    best = tl.full([BLOCK_N], float("-inf"), tl.float32)
    chosen = tl.zeros([BLOCK_N], tl.int32)
    for first in range(0, C, BLOCK_C):
        b_s = _scores(
            p_anchors + batch * anchor_batch, p_points + first_token * width, first, token, C,
            width, real, PRECISION, BLOCK_F, BLOCK_C,
        )  # fmt: skip
        cluster = first + tl.arange(0, BLOCK_C)
        at = p_normalizer + batch * C + cluster
        b_normalizer = tl.load(at, mask=cluster < C, other=float("inf"))
        b_s = b_s - b_normalizer[None, :]
        b_max = tl.max(b_s, 1)
        b_argmax = first + tl.argmax(b_s, 1)
        better = b_max > best
        chosen = tl.where(better, b_argmax, chosen)
        best = tl.where(better, b_max, best)
    tl.store(p_assignment + first_token + token, chosen.to(tl.int64), mask=inside)


@triton.jit
def _count_kernel(
    p_assignment, p_counts, N, C, num_tiles, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Count the tokens of a tile in each cluster.

    Traffic: B N (8 + C / 8) bytes.
    """
    tile = tl.program_id(0)
    batch = row_of_program()
    token = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    cluster = tl.load(p_assignment + batch * N + token, mask=token < N, other=-1)
    for first in range(0, C, BLOCK_C):
        label = first + tl.arange(0, BLOCK_C)
        count = tl.sum((cluster[:, None] == label[None, :]).to(tl.int32), 0)
        position = (batch * C + label) * num_tiles + tile
        tl.store(p_counts + position, count.to(tl.int64), mask=label < C)


@triton.jit
def _position_kernel(
    p_assignment, p_starts, p_order, p_inverse, N, C, num_tiles, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Find the sorted position of each token of a tile: behind earlier tokens of its cluster.

    Traffic: B N 32 bytes.
    """
    tile = tl.program_id(0)
    batch = row_of_program()
    within = tl.arange(0, BLOCK_N)
    token = tile * BLOCK_N + within
    cluster = tl.load(p_assignment + batch * N + token, mask=token < N, other=-1)
    same = cluster[:, None] == cluster[None, :]
    rank = tl.sum((same & (within[None, :] < within[:, None])).to(tl.int32), 1)
    start = tl.load(p_starts + (batch * C + cluster) * num_tiles + tile, mask=token < N, other=0)
    position = start + rank
    tl.store(p_order + batch * N + position, token.to(tl.int64), mask=token < N)
    tl.store(p_inverse + batch * N + token, position, mask=token < N)


@torch.library.custom_op("clusterformer::assign_triton", mutates_args=())
def assign(points: Tensor, anchors: Tensor, real: Tensor, normalizer: Tensor) -> Tensor:
    """Compute argmax_i (S_ij - normalizer_i), (B, N), with S = anchors points^T.

    At padding it may be any cluster.

    Args:
        points: (B, N, F). All arguments are contiguous; numbers are float32.
        anchors: (C, F) or (B, C, F).
        real: (B, N), True at real tokens.
        normalizer: (B, C), from `centroid_means`.
    """
    batch, length, width = points.shape
    clusters, tiles = anchors.shape[-2], triton.cdiv(length, TILE)
    assignment = points.new_empty(batch, length, dtype=torch.long)
    grid = tiles, *spread_rows(batch)
    _assign_kernel[grid](
        points, anchors, real, normalizer, assignment, length, clusters, width, _stride(anchors),
        **_blocks(points),
    )  # fmt: skip
    return assignment


@assign.register_fake
def _(points: Tensor, anchors: Tensor, real: Tensor, normalizer: Tensor) -> Tensor:
    return points.new_empty(points.shape[:2], dtype=torch.long)


def _stride(anchors: Tensor) -> int:
    """Elements from one sequence's anchors to the next one's; 0 where all share them."""
    return anchors.shape[1] * anchors.shape[2] if anchors.dim() == 3 else 0


def _blocks(points: Tensor) -> dict[str, Any]:
    precision = Device.of(points.device).exact
    return {"PRECISION": precision, "BLOCK_F": COLUMNS, "BLOCK_N": TILE, "BLOCK_C": CENTROIDS}


def sort(assignment: Tensor, num_clusters: int, key_mask: Tensor | None = None) -> Sorted:
    """Sort tokens by cluster with a stable counting sort; see `reference`."""
    return Sorted(*_sort(assignment, num_clusters, key_mask))


@torch.library.custom_op("clusterformer::sort_triton", mutates_args=())
def _sort(
    assignment: Tensor, num_clusters: int, key_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute order, inverse and counts.

    Cost: O(N + C N / TILE) time and memory.
    """
    batch, length = assignment.shape
    if key_mask is not None:
        assignment = assignment.masked_fill(~key_mask, num_clusters)
    assignment = assignment.contiguous()
    clusters, tiles = num_clusters + 1, triton.cdiv(length, TILE)
    counts = assignment.new_empty(batch, clusters, tiles)
    grid = tiles, *spread_rows(batch)
    sizes = length, clusters, tiles
    _count_kernel[grid](assignment, counts, *sizes, BLOCK_N=TILE, BLOCK_C=CENTROIDS)
    flat = counts.flatten(1)
    starts = (flat.cumsum(1) - flat).contiguous()
    order, inverse = torch.empty_like(assignment), torch.empty_like(assignment)
    _position_kernel[grid](assignment, starts, order, inverse, *sizes, BLOCK_N=TILE)
    return order, inverse, counts.sum(-1)[:, :num_clusters].contiguous()


@_sort.register_fake
def _(
    assignment: Tensor, num_clusters: int, key_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    order, inverse = (assignment.new_empty(assignment.shape) for _ in range(2))
    return order, inverse, assignment.new_empty(assignment.shape[0], num_clusters)
