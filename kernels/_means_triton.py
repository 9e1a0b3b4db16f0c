"""Centroid means in Triton: U X of ClusterFormer's eq. 3, and its gradients.

B batch   N tokens   C clusters   F features (width of the clustering space)
G segments of the tokens   Y parts of the columns

No matrix of tokens by clusters is in memory, and there are no atomics: a program sums over one
segment of the tokens by an online softmax, then segments are summed. A program owns one part of
the columns, and computes scores, over all columns, again for it.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from clusterformer.kernels._grid_triton import row_of_program, spread_rows
from clusterformer.kernels._grouping_triton import COLUMNS, _scores, _stride
from clusterformer.kernels.autograd import register_backward
from clusterformer.kernels.tiles import Device, MeansTile, means_tile, segment_length


@triton.jit
def _columns(rows, row, valid, column, width):
    """Load a block (rows, columns) of a contiguous matrix, 0 outside."""
    at = rows + row[:, None] * width + column[None, :]
    return tl.load(at, mask=valid[:, None] & (column < width)[None, :], other=0.0)


@triton.jit
def _memberships(
    anchors, points, normalizer, c_first, token, C, width, real, PRECISION: tl.constexpr,
    BLOCK_F: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """U (tile, BLOCK_C) of a tile of tokens in a tile of clusters, float32; 0 at padding."""
    b_s = _scores(anchors, points, c_first, token, C, width, real, PRECISION, BLOCK_F, BLOCK_C)
    cluster = c_first + tl.arange(0, BLOCK_C)
    b_normalizer = tl.load(normalizer + cluster, mask=cluster < C, other=float("inf"))
    return tl.where(real[:, None], tl.exp(b_s - b_normalizer[None, :]), 0.0)


@triton.jit
def _owned(C, width, BLOCK_C: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):
    """First centroid, columns and segment of a program; neighbours read the same segment."""
    parts, tiles = tl.cdiv(width, BLOCK_COLUMNS), tl.cdiv(C, BLOCK_C)
    pid = tl.program_id(0)
    column = pid % parts * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    return pid // parts % tiles * BLOCK_C, column, pid // parts // tiles


@triton.jit
def _means_kernel(
    p_points, p_anchors, p_real, p_partial, p_lse, N, C, width, anchor_batch, segment, segments,
    PRECISION: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute U X and log-sum-exps of a segment, for one tile of centroids and one of columns.

    Traffic: B N (4 F + 1 + C (F + 1) / 256) bytes; 2 B N C F (Y + 1) operations in float32.
    """
    batch = row_of_program()
    c_first, column, index = _owned(C, width, BLOCK_C, BLOCK_COLUMNS)
    first = batch * N + index * segment
    tokens = tl.minimum(segment, N - index * segment)
    m_i = tl.full([BLOCK_C], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_C], tl.float32)
    total = tl.zeros([BLOCK_C, BLOCK_COLUMNS], tl.float32)
    for start in range(0, tokens, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        real = token < tokens
        real &= tl.load(p_real + first + token, mask=real, other=0) != 0
        b_s = _scores(
            p_anchors + batch * anchor_batch, p_points + first * width, c_first, token, C, width,
            real, PRECISION, BLOCK_F, BLOCK_C,
        )  # fmt: skip
        b_s = tl.where(real[:, None], b_s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(b_s, 0))
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        b_u = tl.exp(b_s - m_safe[None, :])
        alpha = tl.exp(m_i - m_safe)
        l_i = l_i * alpha + tl.sum(b_u, 0)
        b_x = _columns(p_points + first * width, token, real, column, width)
        total = total * alpha[:, None]
        total += tl.dot(tl.trans(b_u), b_x, input_precision=PRECISION)
        m_i = m_new
    cluster = c_first + tl.arange(0, BLOCK_C)
    divisor = tl.where(l_i > 0, l_i, 1.0)
    row = (batch * segments + index) * C + cluster
    if tl.program_id(0) % tl.cdiv(width, BLOCK_COLUMNS) == 0:  # the first part of the columns
        tl.store(p_lse + row, m_i + tl.log(divisor), mask=cluster < C)
    at = p_partial + row[:, None] * width + column[None, :]
    inside = (cluster < C)[:, None] & (column < width)[None, :]
    tl.store(at, total / divisor[:, None], mask=inside)


@triton.jit
def _means_anchors_kernel(
    p_points, p_anchors, p_real, p_normalizer, p_grad, p_delta, p_partial, N, C, width,
    anchor_batch, segment, segments, PRECISION: tl.constexpr, BLOCK_F: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of anchors from a segment, in the tiles of `_means_kernel`.

    Traffic: B N (4 F + 1 + C F / 256) bytes; 2 B N C F (2 Y + 1) operations in float32.
    """
    batch = row_of_program()
    c_first, column, index = _owned(C, width, BLOCK_C, BLOCK_COLUMNS)
    cluster = c_first + tl.arange(0, BLOCK_C)
    b_delta = tl.load(p_delta + batch * C + cluster, mask=cluster < C, other=0.0)
    first = batch * N + index * segment
    tokens = tl.minimum(segment, N - index * segment)
    total = tl.zeros([BLOCK_C, BLOCK_COLUMNS], tl.float32)
    for start in range(0, tokens, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        real = token < tokens
        real &= tl.load(p_real + first + token, mask=real, other=0) != 0
        b_u = _memberships(
            p_anchors + batch * anchor_batch, p_points + first * width, p_normalizer + batch * C,
            c_first, token, C, width, real, PRECISION, BLOCK_F, BLOCK_C,
        )  # fmt: skip
        b_ds = _scores(
            p_grad + batch * C * width, p_points + first * width, c_first, token, C, width, real,
            PRECISION, BLOCK_F, BLOCK_C,
        )  # fmt: skip
        b_ds = b_u * (b_ds - b_delta[None, :])
        b_x = _columns(p_points + first * width, token, real, column, width)
        total += tl.dot(tl.trans(b_ds), b_x, input_precision=PRECISION)
    at = p_partial + ((batch * segments + index) * C + cluster[:, None]) * width + column[None, :]
    tl.store(at, total, mask=(cluster < C)[:, None] & (column < width)[None, :])


@triton.jit
def _means_points_kernel(
    p_points, p_anchors, p_real, p_normalizer, p_grad, p_delta, p_dpoints, N, C, width,
    anchor_batch, PRECISION: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of one tile of points and columns; 0 at padding.

    Traffic: B N (8 F + 1) bytes; 2 B N C F (2 Y + 2) operations in float32.
    """
    parts = tl.cdiv(width, BLOCK_COLUMNS)
    batch = row_of_program()
    column = tl.program_id(0) % parts * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    start = tl.program_id(0) // parts * BLOCK_N
    first = batch * N + start
    token = tl.arange(0, BLOCK_N)
    inside = token < N - start
    real = inside & (tl.load(p_real + first + token, mask=inside, other=0) != 0)
    p_anchors += batch * anchor_batch
    p_grad += batch * C * width
    total = tl.zeros([BLOCK_N, BLOCK_COLUMNS], tl.float32)
    for c_first in range(0, C, BLOCK_C):
        b_u = _memberships(
            p_anchors, p_points + first * width, p_normalizer + batch * C, c_first, token, C, width,
            real, PRECISION, BLOCK_F, BLOCK_C,
        )  # fmt: skip
        b_ds = _scores(
            p_grad, p_points + first * width, c_first, token, C, width, real, PRECISION, BLOCK_F,
            BLOCK_C,
        )  # fmt: skip
        cluster = c_first + tl.arange(0, BLOCK_C)
        b_delta = tl.load(p_delta + batch * C + cluster, mask=cluster < C, other=0.0)
        b_ds = b_u * (b_ds - b_delta[None, :])
        grad = _columns(p_grad, cluster, cluster < C, column, width)
        total += tl.dot(b_u, grad, input_precision=PRECISION)
        anchor = _columns(p_anchors, cluster, cluster < C, column, width)
        total += tl.dot(b_ds, anchor, input_precision=PRECISION)
    at = p_dpoints + first * width + token[:, None] * width + column[None, :]
    tl.store(at, total, mask=inside[:, None] & (column < width)[None, :])


@torch.library.custom_op("clusterformer::centroid_means_triton", mutates_args=())
def centroid_means(points: Tensor, anchors: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Compute means U X, (B, C, F), and normalizers, (B, C), with S = anchors points^T.

    normalizer_i = logsumexp_j S_ij over real tokens j; U_ij = exp(S_ij - normalizer_i). They are 0
    and -inf for a sequence without a token. The means have gradients, the normalizers none.

    Args:
        points: X, (B, N, F). All arguments are contiguous; numbers are float32.
        anchors: (C, F) or (B, C, F).
        real: (B, N), True at real tokens.

    Cost: O(N C F Y) time; O(G C F) memory.
    """
    means, grid, sizes, constants = _segments(points, anchors)
    sums = means.new_empty(means.shape[:3])
    _means_kernel[grid](points, anchors, real, means, sums, *sizes, **constants)
    normalizer = sums.logsumexp(1)
    shares = (sums - normalizer.masked_fill(normalizer == float("-inf"), 0.0)[:, None]).exp()
    return (means * shares[..., None]).sum(1), normalizer


@torch.library.custom_op("clusterformer::centroid_means_triton_backward", mutates_args=())
def _backward(
    grad: Tensor, points: Tensor, anchors: Tensor, real: Tensor, means: Tensor, normalizer: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute gradients of points and anchors from dM, the gradient of the means M.

    dS_ij = U_ij (dM_i . x_j - dM_i . M_i); dX = U^T dM + dS^T anchors; d anchors = dS X.
    """
    grad = grad.contiguous()
    given = points, anchors, real, normalizer, grad, (grad * means).sum(-1)
    d_anchors, grid, sizes, constants = _segments(points, anchors)
    _means_anchors_kernel[grid](*given, d_anchors, *sizes, **constants)
    d_anchors = d_anchors.sum(1)
    d_points = torch.empty_like(points)
    batch, length, width = points.shape
    shapes = means_tile(width, points=True)
    tiles = triton.cdiv(length, shapes.own) * triton.cdiv(width, shapes.columns)
    grid = tiles, *spread_rows(batch)
    _means_points_kernel[grid](
        *given, d_points, *_sizes(points, anchors), **_constants(points, shapes),
        BLOCK_N=shapes.own, BLOCK_C=shapes.streamed,
    )  # fmt: skip
    return d_points, d_anchors if anchors.dim() == 3 else d_anchors.sum(0)


@centroid_means.register_fake
def _(points: Tensor, anchors: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    means = points.new_empty(points.shape[0], *anchors.shape[-2:])
    return means, means.new_empty(means.shape[:2])


register_backward(centroid_means, _backward, gradients=2)


def _segments(
    points: Tensor, anchors: Tensor
) -> tuple[Tensor, tuple[int, int, int], tuple[int, ...], dict[str, Any]]:
    """Prepare a launch over segments of tokens.

    Returns:
        Empty room for the sums of each segment, (B, G, C, F), the grid, sizes and constants.
    """
    batch, length, width = points.shape
    shapes = means_tile(width, points=False)
    tiles = triton.cdiv(anchors.shape[-2], shapes.own) * triton.cdiv(width, shapes.columns)
    segment = segment_length(length, tiles * batch)
    segments = triton.cdiv(length, segment)
    found = points.new_empty(batch, segments, *anchors.shape[-2:])
    constants = {"BLOCK_N": shapes.streamed, "BLOCK_C": shapes.own, **_constants(points, shapes)}
    sizes = *_sizes(points, anchors), segment, segments
    return found, (tiles * segments, *spread_rows(batch)), sizes, constants


def _sizes(points: Tensor, anchors: Tensor) -> tuple[int, ...]:
    return points.shape[1], *anchors.shape[-2:], _stride(anchors)


def _constants(points: Tensor, shapes: MeansTile) -> dict[str, Any]:
    return {
        "PRECISION": Device.of(points.device).exact,
        "BLOCK_F": COLUMNS,
        "BLOCK_COLUMNS": shapes.columns,
        "num_warps": shapes.warps,
    }
