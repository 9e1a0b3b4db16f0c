"""Multipole expansions of attention to clusters of keys (MuSe, Mitchell and Kersting, 2025).

B batch   D head width   C clusters of keys   S block size (slots of a cluster or group)
P points of expansion (centroids of queries)   K kept clusters (seen exactly)   G groups of queries
"""

from typing import NamedTuple

import torch
from torch import Tensor

from clusterformer.kernels.attention_and_masses import attention_and_masses
from clusterformer.kernels.merging import NO_MASS


class Expansion(NamedTuple):
    """Summary of all keys for queries near an expansion point.

    Attributes:
        points: (B, P, D) expansion points.
        keys: (B, P, C + K S, D) mean key of each cluster, tilted by the expansion point (eq. 5);
            then the single keys of the clusters seen exactly.
        values: (B, P, C + K S, D) mean value likewise; zeros without monopoles.
        mass: (B, P, C + K S) log of the sum of exp(q . k) over the cluster, mu of algorithm 3, or
            q . k of a single key.
        dipole: (B, P, D, D) covariance of keys and values, joined over clusters (algorithm 5);
            (B, P, D, 0) without dipoles.
    """

    points: Tensor
    keys: Tensor
    values: Tensor
    mass: Tensor
    dipole: Tensor


def expand(
    points: Tensor,
    k: Tensor,
    v: Tensor,
    filled: Tensor,
    *,
    monopole: bool = True,
    dipole: bool = True,
    damped: bool = False,
    exact: int = 0,
) -> Expansion:
    """Summarise clusters of keys as seen from each expansion point (algorithms 3 and 5).

    Args:
        points: (B, P, D); the scale of the logits is folded into them.
        k, v: (B, C, S, D), keys and values in their clusters.
        filled: (B, C, S) bool, False at empty slots.
        monopole: Keep the mean values.
        dipole: Keep the covariances.
        damped: Scale a cluster's covariance, which is not tilted, by the share of its keys with
            weight for the point: 1 / sum p^2 of them (Kish's effective number).
        exact: K, number of clusters of largest mass whose keys each point keeps one by one.

    Cost: O(P C S D) time, and O(C S D^2) for the dipoles; O(P (C + K S) D) memory.
    """
    width = k.shape[-1]
    bias = torch.zeros_like(k[..., 0]).masked_fill_(~filled, NO_MASS)
    of_clusters = points[:, None].expand(-1, k.shape[1], -1, -1)
    tilted, mass = _attend(of_clusters, k, torch.cat([k, v], -1), bias)
    tilted, mass = tilted.transpose(1, 2), mass.transpose(1, 2)  # (B, P, C, ...)
    keys, values = tilted.split(width, -1)
    if not monopole:
        values = torch.zeros_like(values)
    if damped:
        _, of_squares = _attend(2 * of_clusters, k, k[..., :0], bias)
        effective = (2 * mass - of_squares.transpose(1, 2)).exp()
    if exact:
        row = torch.arange(k.shape[0], device=k.device)[:, None, None]
        top = mass.detach().topk(min(exact, k.shape[1]), sorted=False).indices  # (B, P, K)
        kept, kept_values, kept_bias = (x[row, top].flatten(2, 3) for x in (k, v, bias))
        scores = (kept @ points[..., None])[..., 0] + kept_bias
        mass = torch.cat([mass.scatter(-1, top, NO_MASS), scores], -1)
        keys, values = torch.cat([keys, kept], 2), torch.cat([values, kept_values], 2)
    if dipole:
        weights = mass.softmax(-1)[..., : k.shape[1]]
        if damped:
            weights = weights * effective / filled.sum(-1).clamp(min=1)[:, None]
        joint = weights @ covariances(k, v, filled).flatten(2)
        joint = joint.unflatten(-1, (width, width))
    else:
        joint = points.new_zeros(*points.shape, 0)
    return Expansion(points, keys, values, mass, joint)


def covariances(k: Tensor, v: Tensor, filled: Tensor) -> Tensor:
    """Compute Cov(k, v) within each cluster, not tilted, (B, C, D, D): keys first."""
    real = filled[..., None].to(k.dtype)
    share = real / real.sum(2, keepdim=True).clamp(min=1)
    centred = (k - (k * share).sum(2, keepdim=True)) * share
    return centred.transpose(2, 3) @ (v - (v * share).sum(2, keepdim=True))


def evaluate(q: Tensor, expansion: Expansion) -> tuple[Tensor, Tensor]:
    """Attend from queries to the summary of their expansion point (algorithm 4).

    Args:
        q: (B, G, S, D), the queries of each group.
        expansion: Summary for each group's point, P = G.

    Returns:
        Values (B, G, S, D), and the log of their mass (B, G, S, 1).

    Cost: O(G S (C + K S + D) D).
    """
    points, keys, values, mass, dipole = expansion
    residual = q - points[:, :, None]
    out, total = _attend(residual, keys, values, mass)
    if dipole.shape[-1]:
        out = out + residual @ dipole
    return out, total[..., None]


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Attend within each block of a sequence: values (B, ..., F) and masses (B, ...).

    Args:
        q, k, v: (B, blocks, rows, width).
        bias: (B, blocks, keys) on the logits.
    """
    rows = (x.flatten(0, 1) for x in (q, k, v, bias[:, :, None]))
    values, masses = (x.unflatten(0, q.shape[:2]) for x in attention_and_masses(*rows))
    return values, masses[..., 0]
