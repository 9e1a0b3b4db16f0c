"""The mini-batch training of neural clusters, in plain torch.

N points   F features   K neighbours   C clusters
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from clusterformer.clustering.network import NeuralClusters, partner_loss

PROBE = 2048
"""Points whose clusters tell whether training still changes anything."""

LOOK_EVERY = 25
"""Steps from one look at them to the next."""

_REVIVALS = 4  # of what is empty after the last step, at most
_ROWS = 2**15  # points assigned at a time

View = Callable[[Tensor], Tensor]
"""Features (B, F) of points by their numbers (B,), as a training step sees them."""

Report = Callable[[int, float, float], None]
"""Told at each look: steps, loss, share of the probe that changed its cluster since the last."""


class Optimizer(Protocol):
    """What a training needs of a torch optimiser."""

    param_groups: list[dict]

    def zero_grad(self) -> None: ...

    def step(self) -> None: ...


def train(
    network: NeuralClusters,
    optimizer: Optimizer,
    features: Tensor,
    near: Tensor,
    *,
    steps: int,
    batch_size: int,
    balance: float,
    generator: torch.Generator,
    anneal: bool = True,
    tol: float = 0.0,
    view: View | None = None,
    report: Report | None = None,
) -> int:
    """Train on batches of points, each with a partner drawn among its neighbours.

    In the end no cluster is without points, unless too many points are the same.

    Args:
        network: To train, on the device of the features.
        optimizer: Of its parameters.
        features: (N, F).
        near: (N, K), neighbours of each point.
        steps: At most.
        batch_size: Points a step, at most.
        balance: Of the loss.
        generator: On the CPU.
        anneal: Let the learning rate fall to nothing, as half a cosine.
        tol: Stop when at most this share of the points changed cluster in LOOK_EVERY steps.
        view: For augmentation; None shows the features as they are.
        report: Told of the progress.

    Returns:
        The steps taken.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    probe = features[:PROBE]
    before = _assign(network, probe)
    batches = _endless(len(features), batch_size, generator)
    for step in range(1, steps + 1):
        if anneal:
            factor = (1 + math.cos(math.pi * (step - 1) / steps)) / 2
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
        points = next(batches)
        drawn = torch.randint(near.shape[1], points.shape, generator=generator)
        points, drawn = points.to(near.device), drawn.to(near.device)
        both = torch.cat([points, near[points, drawn]])
        shown = features[both] if view is None else view(both)
        logits, partner_logits = network(shown).chunk(2)
        loss = partner_loss(logits, partner_logits, balance)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        network.watch(features[points], logits.detach(), partner_logits.detach())
        if step % LOOK_EVERY == 0:
            after = _assign(network, probe)
            changed = (after != before).float().mean().item()
            before = after
            if report is not None:
                report(step, loss.item(), changed)
            if changed <= tol and step > network.merge_at + LOOK_EVERY:
                break
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for _ in range(_REVIVALS):
        sizes = torch.bincount(_assign(network, features), minlength=network.num_clusters)
        if sizes.all():
            break
        network.revive(features, sizes)
    return step


@torch.no_grad()
def _assign(network: NeuralClusters, features: Tensor) -> Tensor:
    return torch.cat([network(rows).argmax(1) for rows in features.split(_ROWS)])


def _endless(count: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Every point once, in random order, again and again; what does not fill a batch waits."""
    size = min(batch_size, count)
    while True:
        order = torch.randperm(count, generator=generator)
        yield from order[: count - count % size].split(size)
