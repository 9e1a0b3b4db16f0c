"""Centroid means in Triton: U X of ClusterFormer's eq. 3, and its gradients.

B batch   N tokens   C clusters   W width of the clustering space   V parts of its columns: a
program owns one part, and computes scores, over all columns, anew for it

No matrix of tokens by clusters is in memory, and there are no atomics: sums over tokens are taken
a segment of them a program, by an online softmax, then over segments.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from clusterformer.kernels._grouping_triton import COLUMNS, _scores, _stride
from clusterformer.kernels.tiles import Device, MeansTile, means_tile, segment_length


@triton.jit
def _columns(rows, row, valid, column, width):
    """Block (rows, columns) of a contiguous matrix, 0 outside."""
    at = rows + row[:, None] * width + column[None, :]
    return tl.load(at, mask=valid[:, None] & (column < width)[None, :], other=0.0)


@triton.jit
def _memberships(
    anchors, points, normaliser, c_first, token, C, width, real,
    PRECISION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """U (tile, BLOCK_C) of a tile of tokens in a tile of clusters, float32; 0 at padding."""
    scores = _scores(anchors, points, c_first, token, C, width, real, PRECISION, BLOCK_P, BLOCK_C)
    cluster = c_first + tl.arange(0, BLOCK_C)
    norm = tl.load(normaliser + cluster, mask=cluster < C, other=float("inf"))
    return tl.where(real[:, None], tl.exp(scores - norm[None, :]), 0.0)


@triton.jit
def _owned(C, width, BLOCK_C: tl.constexpr, BLOCK_V: tl.constexpr):
    """First centroid, columns and segment of a program; neighbours read the same segment."""
    parts, tiles = tl.cdiv(width, BLOCK_V), tl.cdiv(C, BLOCK_C)
    place = tl.program_id(0)
    column = place % parts * BLOCK_V + tl.arange(0, BLOCK_V)
    return place // parts % tiles * BLOCK_C, column, place // parts // tiles


@triton.jit
def _means_kernel(
    POINTS, ANCHORS, REAL, PARTIAL, SUMS, N, C, width, anchor_batch, segment, segments,
    PRECISION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    """U X and log-sum-exp of a segment alone, for one tile of centroids and one of columns.

    Traffic: B N (4 W + 1 + C (W + 1) / 256) bytes; 2 B N C W (V + 1) operations in float32.
    """
    batch = tl.program_id(1).to(tl.int64)
    c_first, column, piece = _owned(C, width, BLOCK_C, BLOCK_V)
    first = batch * N + piece * segment
    tokens = tl.minimum(segment, N - piece * segment)
    highest = tl.full([BLOCK_C], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_C], tl.float32)
    total = tl.zeros([BLOCK_C, BLOCK_V], tl.float32)
    for start in range(0, tokens, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        real = token < tokens
        real &= tl.load(REAL + first + token, mask=real, other=0) != 0
        scores = _scores(
            ANCHORS + batch * anchor_batch, POINTS + first * width, c_first, token, C, width, real,
            PRECISION, BLOCK_P, BLOCK_C,
        )  # fmt: skip
        scores = tl.where(real[:, None], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 0))
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        members = tl.exp(scores - safe[None, :])
        before = tl.exp(highest - safe)
        weight = weight * before + tl.sum(members, 0)
        x = _columns(POINTS + first * width, token, real, column, width)
        total = total * before[:, None]
        total += tl.dot(tl.trans(members), x, input_precision=PRECISION)
        highest = higher
    cluster = c_first + tl.arange(0, BLOCK_C)
    some = tl.where(weight > 0, weight, 1.0)
    row = (batch * segments + piece) * C + cluster
    whose = (cluster < C) & (tl.program_id(0) % tl.cdiv(width, BLOCK_V) == 0)
    tl.store(SUMS + row, highest + tl.log(some), mask=whose)
    at = PARTIAL + row[:, None] * width + column[None, :]
    inside = (cluster < C)[:, None] & (column < width)[None, :]
    tl.store(at, total / some[:, None], mask=inside)


@triton.jit
def _means_anchors_kernel(
    POINTS, ANCHORS, REAL, NORMALISER, GRAD, DELTA, PARTIAL, N, C, width, anchor_batch, segment,
    segments, PRECISION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Gradient of the anchors from a segment of the tokens, in the tiles of `_means_kernel`.

    Traffic: B N (4 W + 1 + C W / 256) bytes; 2 B N C W (2 V + 1) operations in float32.
    """
    batch = tl.program_id(1).to(tl.int64)
    c_first, column, piece = _owned(C, width, BLOCK_C, BLOCK_V)
    cluster = c_first + tl.arange(0, BLOCK_C)
    delta = tl.load(DELTA + batch * C + cluster, mask=cluster < C, other=0.0)
    first = batch * N + piece * segment
    tokens = tl.minimum(segment, N - piece * segment)
    total = tl.zeros([BLOCK_C, BLOCK_V], tl.float32)
    for start in range(0, tokens, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        real = token < tokens
        real &= tl.load(REAL + first + token, mask=real, other=0) != 0
        members = _memberships(
            ANCHORS + batch * anchor_batch, POINTS + first * width, NORMALISER + batch * C,
            c_first, token, C, width, real, PRECISION, BLOCK_P, BLOCK_C,
        )  # fmt: skip
        slopes = _scores(
            GRAD + batch * C * width, POINTS + first * width, c_first, token, C, width, real,
            PRECISION, BLOCK_P, BLOCK_C,
        )  # fmt: skip
        slopes = members * (slopes - delta[None, :])
        x = _columns(POINTS + first * width, token, real, column, width)
        total += tl.dot(tl.trans(slopes), x, input_precision=PRECISION)
    at = PARTIAL + ((batch * segments + piece) * C + cluster[:, None]) * width + column[None, :]
    tl.store(at, total, mask=(cluster < C)[:, None] & (column < width)[None, :])


@triton.jit
def _means_points_kernel(
    POINTS, ANCHORS, REAL, NORMALISER, GRAD, DELTA, D_POINTS, N, C, width, anchor_batch,
    PRECISION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Gradient of one tile of points, one tile of columns of it; 0 at padding.

    Traffic: B N (8 W + 1) bytes; 2 B N C W (2 V + 2) operations in float32.
    """
    parts = tl.cdiv(width, BLOCK_V)
    batch = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) % parts * BLOCK_V + tl.arange(0, BLOCK_V)
    start = tl.program_id(0) // parts * BLOCK_N
    first = batch * N + start
    token = tl.arange(0, BLOCK_N)
    inside = token < N - start
    real = inside & (tl.load(REAL + first + token, mask=inside, other=0) != 0)
    ANCHORS += batch * anchor_batch
    GRAD += batch * C * width
    total = tl.zeros([BLOCK_N, BLOCK_V], tl.float32)
    for c_first in range(0, C, BLOCK_C):
        members = _memberships(
            ANCHORS, POINTS + first * width, NORMALISER + batch * C, c_first, token, C, width,
            real, PRECISION, BLOCK_P, BLOCK_C,
        )  # fmt: skip
        slopes = _scores(
            GRAD, POINTS + first * width, c_first, token, C, width, real, PRECISION, BLOCK_P,
            BLOCK_C,
        )  # fmt: skip
        cluster = c_first + tl.arange(0, BLOCK_C)
        delta = tl.load(DELTA + batch * C + cluster, mask=cluster < C, other=0.0)
        slopes = members * (slopes - delta[None, :])
        grad = _columns(GRAD, cluster, cluster < C, column, width)
        total += tl.dot(members, grad, input_precision=PRECISION)
        anchor = _columns(ANCHORS, cluster, cluster < C, column, width)
        total += tl.dot(slopes, anchor, input_precision=PRECISION)
    at = D_POINTS + first * width + token[:, None] * width + column[None, :]
    tl.store(at, total, mask=inside[:, None] & (column < width)[None, :])


@torch.library.custom_op("clusterformer::centroid_means_triton", mutates_args=())
def centroid_means(points: Tensor, anchors: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Means U X, (B, C, W), and normalisers (B, C), with S = anchors points^T over real tokens.

    normaliser_i = logsumexp_j S_ij; U_ij = exp(S_ij - normaliser_i). For a sequence without a token
    0 and -inf. The means have gradients, the normalisers none.

    Args:
        points: X, (B, N, W), float32 and contiguous, as are all of these.
        anchors: (C, W) or (B, C, W).
        real: (B, N), True at real tokens.

    Cost: O(N C W V) time; O(C W) memory a segment.
    """
    means, grid, sizes, constants = _segments(points, anchors)
    sums = means.new_empty(means.shape[:3])
    _means_kernel[grid](points, anchors, real, means, sums, *sizes, **constants)
    normaliser = sums.logsumexp(1)
    shares = (sums - normaliser.masked_fill(normaliser == float("-inf"), 0.0)[:, None]).exp()
    return (means * shares[..., None]).sum(1), normaliser


@torch.library.custom_op("clusterformer::centroid_means_triton_backward", mutates_args=())
def _backward(
    grad: Tensor, points: Tensor, anchors: Tensor, real: Tensor, normaliser: Tensor, means: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of points and anchors, from G, that of the means M.

    dS_ij = U_ij (G_i . x_j - G_i . M_i); dX = U^T G + dS^T anchors; d anchors = dS X.
    """
    grad = grad.contiguous()
    given = points, anchors, real, normaliser, grad, (grad * means).sum(-1)
    d_anchors, grid, sizes, constants = _segments(points, anchors)
    _means_anchors_kernel[grid](*given, d_anchors, *sizes, **constants)
    d_anchors = d_anchors.sum(1)
    d_points = torch.empty_like(points)
    batch, length, width = points.shape
    shapes = means_tile(width, points=True)
    tiles = triton.cdiv(length, shapes.own) * triton.cdiv(width, shapes.columns)
    _means_points_kernel[tiles, batch](
        *given, d_points, *_sizes(points, anchors), **_constants(points, shapes),
        BLOCK_N=shapes.own, BLOCK_C=shapes.streamed,
    )  # fmt: skip
    return d_points, d_anchors if anchors.dim() == 3 else d_anchors.sum(0)


@centroid_means.register_fake
def _(points: Tensor, anchors: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    means = points.new_empty(points.shape[0], *anchors.shape[-2:])
    return means, means.new_empty(means.shape[:2])


@_backward.register_fake
def _(grad: Tensor, points: Tensor, anchors: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    return points.new_empty(points.shape), anchors.new_empty(anchors.shape)


def _setup(ctx, inputs, output) -> None:
    means, normaliser = output
    ctx.mark_non_differentiable(normaliser)
    ctx.save_for_backward(*inputs, normaliser, means)


def _differentiate(ctx, grad: Tensor, _: Tensor):
    return *_backward(grad, *ctx.saved_tensors), None


centroid_means.register_autograd(_differentiate, setup_context=_setup)


def _segments(
    points: Tensor, anchors: Tensor
) -> tuple[Tensor, tuple[int, int], tuple[int, ...], dict[str, Any]]:
    """Room for what programs find of each segment of tokens, (B, segments, C, W), and their launch.

    Returns:
        That, the grid, sizes and constants.
    """
    batch, length, width = points.shape
    shapes = means_tile(width, points=False)
    tiles = triton.cdiv(anchors.shape[-2], shapes.own) * triton.cdiv(width, shapes.columns)
    segment = segment_length(length, tiles * batch)
    segments = triton.cdiv(length, segment)
    found = points.new_empty(batch, segments, *anchors.shape[-2:])
    constants = {"BLOCK_N": shapes.streamed, "BLOCK_C": shapes.own, **_constants(points, shapes)}
    sizes = *_sizes(points, anchors), segment, segments
    return found, (tiles * segments, batch), sizes, constants


def _sizes(points: Tensor, anchors: Tensor) -> tuple[int, ...]:
    return points.shape[1], *anchors.shape[-2:], _stride(anchors)


def _constants(points: Tensor, shapes: MeansTile) -> dict[str, Any]:
    return {
        "PRECISION": Device.of(points.device).exact,
        "BLOCK_P": COLUMNS,
        "BLOCK_V": shapes.columns,
        "num_warps": shapes.warps,
    }
