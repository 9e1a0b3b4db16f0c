"""Losses: cross-entropy of a task, and those that make clusters worth attending in.

B batch   N tokens   C clusters   L labels

Each function returns sums, so that a trainer can divide by the tokens or sequences of a whole
batch however it is spread over processes. Equations are those of ClusterFormer (Wang et al., 2022).
"""

from collections.abc import Iterable
from functools import partial
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.attention import Grouping
from clusterformer.clustering.unit_vectors import unit_vectors

IGNORE = -100
"""Target of an example or token that counts in no loss and no metric."""

ClusteringForm = Literal["contrastive", "bare", "bounded"]
"""Form of the clustering loss; see `clustering_loss`. "bounded" is one of the sorting loss too."""

_TEMPERATURE = 0.1  # of the contrastive form, for the cosine

_CACHED = 2**20
"""Logits of one piece of `cross_entropy` on the CPU. They stay in its cache: a training step of a
language model with 4,096 tokens in its vocabulary takes 0.6 to 0.75 of the time."""


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    label_smoothing: float = 0.0,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum the cross-entropy over all targets but IGNORE, in float32 (L3 of eq. 17).

    Args:
        logits: (B, L), or (B, N, L).
        target: (B,), or (B, N): labels 0..L - 1 or IGNORE.
        label_smoothing: Probability spread over all labels, 0..1.
        weights: Weight of each label, (L,); None for 1.

    Returns:
        The sum, differentiable, and the number of targets that count.
    """
    of_piece = partial(
        F.cross_entropy,
        weight=weights,
        ignore_index=IGNORE,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
    rows, labels = logits.flatten(0, -2), target.flatten()
    size = _CACHED // logits.shape[-1] if logits.device.type == "cpu" else len(rows)
    pieces = zip(rows.split(max(1, size)), labels.split(max(1, size)), strict=True)
    total = torch.stack([of_piece(some.float(), its_labels) for some, its_labels in pieces]).sum()
    return total, (target != IGNORE).sum()


class Auxiliary(NamedTuple):
    """Auxiliary losses of a batch, averaged over the layers that cluster; None where none does.

    Attributes:
        clustering: L1, summed over tokens.
        sorting: L2, summed over sequences.
    """

    clustering: Tensor | None
    sorting: Tensor | None


def auxiliary(
    groupings: Iterable[Grouping | None],
    mask: Tensor,
    form: ClusteringForm = "contrastive",
    sequences: Tensor | None = None,
    layers: int = 0,
) -> Auxiliary:
    """Sum both losses over a batch and average them over layers.

    Args:
        groupings: Grouping of each layer.
        mask: (B, N), True at real tokens.
        form: Form of the losses; see `clustering_loss` and `sorting_loss`.
        sequences: (B,), True where the sorting loss counts; None: at sequences with a real token.
        layers: Number of layers that cluster, those included whose texts are all short in this
            batch; 0: those that have a grouping.

    Raises:
        ValueError: if groupings holds anything else, or the mask does not fit them.
    """
    found = [g for g in _present(groupings) if g.centroids is not None]
    if not found:
        return Auxiliary(None, None)
    clustering = torch.stack([clustering_loss(g, mask, form).sum() for g in found])
    real = mask.any(-1) if sequences is None else sequences
    sorting = torch.stack([sorting_loss(g, form)[real].sum() for g in found])
    share = len(found) / max(len(found), layers)
    return Auxiliary(share * clustering.mean(), share * sorting.mean())


def mechanism_loss(groupings: Iterable[Grouping | None]) -> Tensor | None:
    """Sum the mechanisms' own losses over a batch, averaged over the layers that have one.

    Such is the loss by which an indexer learns what attention wants. None where no layer has one.
    """
    found = [g.loss.sum() for g in _present(groupings) if g.loss is not None]
    return torch.stack(found).mean() if found else None


def clustering_loss(
    grouping: Grouping, mask: Tensor, form: ClusteringForm = "contrastive"
) -> Tensor:
    """L1: distance of tokens from the updated centroid of their cluster.

    bare (eq. 6):  sum_j -phi(X_j, C'_{I_j}). Pulls together only. With phi the inner product it
        has no lower bound; with the cosine it is bounded by -1 a token.
    bounded:       the same with the cosine for phi, also where eq. 2 has the inner product.
    contrastive:   sum_j -log softmax_i(phi(X_j, C'_i) / 0.1)_{I_j}. Pulls together and
        keeps clusters apart.

    Args:
        grouping: Grouping with points and centroids.
        mask: (B, N), True at real tokens.
        form: "contrastive", "bare" or "bounded".

    Returns:
        (B,), the sum over the real tokens of each sequence; 0 for one that is not clustered.

    Raises:
        ValueError: if the grouping has no points and centroids, or the mask does not fit it.
    """
    points, centroids = _space(grouping, form)
    shape = (len(grouping.assignment), grouping.assignment.shape[-1])
    if not isinstance(mask, Tensor) or mask.dtype is not torch.bool or mask.shape != shape:
        found = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
        raise ValueError(f"mask must be bool {shape}, True at real tokens; got {found:.80}")
    mask = grouping.clustered(mask)
    texts, length = mask.shape
    mask = mask.repeat_interleave(len(points) // texts, 0)  # a row for each clustering
    labels = grouping.assignment.reshape(-1, length).masked_fill(~mask, 0)
    with torch.autocast(points.device.type, enabled=False):
        phi = points @ centroids.transpose(1, 2)  # (B, N, C)
    if form == "contrastive":
        scaled = (phi / _TEMPERATURE).transpose(1, 2)
        losses = F.cross_entropy(scaled, labels, reduction="none")
    elif form in ("bare", "bounded"):
        losses = -phi.gather(2, labels[..., None])[..., 0]
    else:
        raise ValueError(f'form must be "contrastive", "bare" or "bounded", got {form!r}')
    return losses.masked_fill(~mask, 0.0).sum(-1).view(texts, -1).mean(1)


def sorting_loss(grouping: Grouping, form: ClusteringForm = "bare") -> Tensor:
    """L2: distance of neighbouring centroids from each other, around the circle (eq. 11).

    -mean_i phi(C'_i, C'_{i-1}), with C'_0 = C'_k. With phi the inner product it has no lower bound.

    Args:
        grouping: Grouping with points and centroids.
        form: "bounded" takes the cosine for phi, also where eq. 2 has the inner product.

    Returns:
        (B,), one value a sequence; 0 for one that is not clustered.
    """
    _, centroids = _space(grouping, form)
    losses = -(centroids * centroids.roll(1, 1)).sum(-1).mean(-1)  # a row for each clustering
    losses = losses.view(len(grouping.assignment), -1).mean(1)
    return losses if grouping.texts is None else losses.masked_fill(~grouping.texts, 0.0)


def _present(groupings: Iterable[Grouping | None]) -> list[Grouping]:
    """List the groupings that are there."""
    found = [grouping for grouping in groupings if grouping is not None]
    for grouping in found:
        if not isinstance(grouping, Grouping):
            raise ValueError(
                "groupings must be a list with the Grouping of each layer, or None; "
                f"got {type(grouping).__name__} in it"
            )
    return found


def _space(grouping: Grouping, form: ClusteringForm) -> tuple[Tensor, Tensor]:
    """Points and updated centroids, such that their product is phi."""
    points, centroids = grouping.points, grouping.centroids
    if points is None or centroids is None:
        raise ValueError("a grouping without points and centroids has no clustering loss")
    if grouping.similarity == "cosine" or form == "bounded":
        return unit_vectors(points.float()), unit_vectors(centroids.float())
    return points.float(), centroids.float()
