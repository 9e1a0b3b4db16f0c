"""Causal multipole attention: a binary tree of blocks (MuSe, section 6).

B batch, heads folded in   N tokens   D head width   P points of expansion   C clusters
G groups of queries
"""

from functools import reduce
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo  # torch.compiler.disable, imported when called

from clusterformer.clustering.kmeans import (
    cluster_capacity,
    cluster_means,
    kmeans,
    nearest,
)
from clusterformer.kernels.chunking import capped_blocks, cluster_chunks
from clusterformer.kernels.grouping import sort
from clusterformer.kernels.merged_attention import merged_attention
from clusterformer.kernels.merging import NO_MASS
from clusterformer.kernels.multipole import Expansion, evaluate, expand
from clusterformer.kernels.rows import gather_own, resort


class Settings(NamedTuple):
    """Options of `MultipoleAttention` as plain numbers."""

    num_clusters: int
    iterations: int
    cap: float
    monopole: bool
    dipole: bool
    two_stage: bool
    damped: bool
    exact_clusters: int
    block_size: int


def query_clusters(
    q: Tensor, mask: Tensor | None, offset: Tensor, settings: Settings, *, cap: float | None
) -> tuple[Tensor, int]:
    """Cluster the queries: (B, N), and the number of clusters, which is one without two stages."""
    if not settings.two_stage:
        return torch.zeros(q.shape[:2], dtype=torch.long, device=q.device), 1
    return _cluster(q, mask, offset, settings, cap), settings.num_clusters


def expand_keys(
    points: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    offset: Tensor,
    settings: Settings,
) -> Expansion:
    """Cluster the keys (B, N, D), and summarise them for expansion at `points` (B, P, D)."""
    assignment = _cluster(k, mask, offset, settings, settings.cap)
    grouped = sort(assignment, settings.num_clusters, mask)
    capacity = cluster_capacity(k.shape[1], settings.num_clusters, settings.cap)
    blocks = capped_blocks(grouped, capacity, mask)
    return expand(
        points,
        gather_own(k, blocks),
        gather_own(v, blocks),
        blocks.filled,
        monopole=settings.monopole,
        dipole=settings.dipole,
        damped=settings.damped,
        exact=settings.exact_clusters,
    )


def tree_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, offset: Tensor, settings: Settings
) -> Tensor:
    """Apply strictly causal attention: exact within blocks, multipoles of completed blocks before.

    Args:
        q, k, v: (B, N, D), the scale folded into q.
        mask: (B, N), True at real tokens; padding has no position.
        offset: Number in 0..1 that starts k-means.
        settings: Options of the mechanism.

    Returns:
        (B, N, D); any values at padding.
    """
    if torch.onnx.is_in_onnx_export():
        raise ValueError(
            "MultipoleAttention(causal=True) has no ONNX form: the depth of its tree depends on "
            "the length; export causal=False, or use torch.export"
        )
    if torch.compiler.is_exporting() or (
        torch.compiler.is_compiling() and not torch.is_grad_enabled()
    ):
        return _tree_attention_op(q, k, v, mask, offset, *settings)
    if torch.compiler.is_compiling():  # which would unroll the levels, for minutes
        return _uncompiled(q, k, v, mask, offset, settings)
    if mask is None:
        return _tree(q, k, v, offset, settings)
    grouped = sort(torch.zeros_like(mask, dtype=torch.long), 1, mask)
    q, k, v = (_select(x, grouped.order) for x in (q, k, v))
    return _select(_tree(q, k, v, offset, settings), grouped.inverse)


@_disable_dynamo
def _uncompiled(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, offset: Tensor, settings: Settings
) -> Tensor:
    """Run `tree_attention` between two graphs; a copy, as a view at some lengths is a guard."""
    values = tree_attention(q, k, v, mask, offset, settings)
    return values.clone(memory_format=torch.contiguous_format)


def _tree(q: Tensor, k: Tensor, v: Tensor, offset: Tensor, settings: Settings) -> Tensor:
    batch, length, width = q.shape
    levels = []
    size = settings.block_size
    while size < length:
        pairs = -(-(length - size) // (2 * size))
        halves = (_blocks(x, pairs, 2 * size).chunk(2, dim=1) for x in (q, k, v))
        (behind, looking), (keys, _), (values, _) = halves  # (B * pairs, size, D)
        summary = summarize_blocks(behind, keys, values, offset, settings)
        seen, mass = _attend_to_summary(looking, summary)
        seen = F.pad(seen, (0, 0, size, 0)).view(batch, -1, width)
        mass = F.pad(mass, (0, 0, size, 0), value=NO_MASS).view(batch, -1, 1)
        levels.append((_fit(seen, length), _fit(mass, length, NO_MASS)))
        size *= 2
    size = min(settings.block_size, length)
    if not levels:
        levels.append((torch.zeros_like(q), q.new_full((batch, length, 1), NO_MASS)))
    far, far_mass = reduce(lambda a, b: merge(*a, *b), levels)
    near = (_blocks(x, -(-length // size), size) for x in (q, k, v, far, far_mass))
    return merged_attention(*near).view(batch, -1, width)[:, :length]


def summarize_blocks(
    q: Tensor, k: Tensor, v: Tensor, offset: Tensor, settings: Settings
) -> Expansion:
    """Summarise completed blocks (B, N, D) for expansion at the centroids of their queries."""
    assignment, count = query_clusters(q, None, offset, settings, cap=None)
    points, _ = cluster_means(q, assignment, count)
    return expand_keys(points, k, v, None, offset, settings)


def _attend_to_summary(q: Tensor, summary: Expansion) -> tuple[Tensor, Tensor]:
    """Attend from queries (B, N, D) through the nearest points: values, log-mass (B, N, 1)."""
    count = summary.points.shape[1]
    chosen = nearest(q.detach(), summary.points.detach())
    grouped = sort(chosen, count)
    width = max(8, -(-q.shape[1] // (2 * count)))  # wider groups have more empty slots
    groups = cluster_chunks(grouped, width, look_back=0)
    owner = chosen.gather(1, groups.members[..., 0])  # (B, G)
    found = evaluate(gather_own(q, groups), select_points(summary, owner))
    values, mass = resort(torch.cat(found, -1), groups).split((q.shape[-1], 1), -1)
    return values, mass


def select_points(expansion: Expansion, owner: Tensor) -> Expansion:
    """Select the expansions at the points `owner` (B, G)."""
    return Expansion(*(_select(x, owner) for x in expansion))


def merge(a: Tensor, a_mass: Tensor, b: Tensor, b_mass: Tensor) -> tuple[Tensor, Tensor]:
    """Merge attention to two sets of keys (eq. 8): values (B, N, D), log-masses (B, N, 1)."""
    mass = torch.logaddexp(a_mass, b_mass)
    return (a_mass - mass).exp() * a + (b_mass - mass).exp() * b, mass


def _cluster(
    x: Tensor, mask: Tensor | None, offset: Tensor, settings: Settings, cap: float | None
) -> Tensor:
    return kmeans(
        x.detach(),
        settings.num_clusters,
        offset,
        mask,
        iterations=settings.iterations,
        cap=cap,
    )


def _blocks(x: Tensor, count: int, size: int) -> Tensor:
    """Cut (B, N, D) into (B * count, size, D), padded with zeros."""
    return _fit(x, count * size).reshape(-1, size, x.shape[-1])


def _fit(x: Tensor, length: int, value: float = 0.0) -> Tensor:
    """Cut (B, N, D) to a length, or pad it; without a copy where nothing is to be added."""
    missing = length - x.shape[1]
    return F.pad(x, (0, 0, 0, missing), value=value) if missing > 0 else x[:, :length]


def _select(x: Tensor, index: Tensor) -> Tensor:
    """Select entries of x (B, N, ...) at index (B, G), giving (B, G, ...)."""
    row = torch.arange(index.shape[0], device=x.device)[:, None] * x.shape[1]
    return x.flatten(0, 1).index_select(0, (index + row).flatten()).unflatten(0, index.shape)


@torch.library.custom_op("clusterformer::tree_attention", mutates_args=())
def _tree_attention_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    offset: Tensor,
    num_clusters: int,
    iterations: int,
    cap: float,
    monopole: bool,
    dipole: bool,
    two_stage: bool,
    damped: bool,
    exact_clusters: int,
    block_size: int,
) -> Tensor:
    """Run `tree_attention` as one node of a graph: the number of levels depends on the length."""
    settings = Settings(
        num_clusters, iterations, cap, monopole, dipole, two_stage, damped, exact_clusters,
        block_size,
    )  # fmt: skip
    return tree_attention(q, k, v, mask, offset, settings).contiguous()


@_tree_attention_op.register_fake
def _(q: Tensor, *_others: object) -> Tensor:
    return torch.empty_like(q)
