"""The mini-batch training of neural clusters, in plain torch.

P points   F features   B batch
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from clusterformer.clustering.network import NeuralClusters, neighbor_loss

PROBE = 2048
"""Number of points whose changes of cluster are watched."""

LOOK_EVERY = 25
"""Steps between two looks at these points."""

_MAX_REVIVALS = 4  # of empty clusters after the last step
_ROWS = 2**15  # points assigned at a time

View = Callable[[Tensor], Tensor]
"""Function from indices of points (B,) to their features (B, F) in a training step."""

Report = Callable[[int, float, float], None]
"""Function called at each look: steps, loss, share of the probe that changed cluster since."""


class Optimizer(Protocol):
    """The part of a torch optimizer that training uses."""

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
    weights: Tensor | None = None,
    pairs: Tensor | None = None,
    fill: bool = True,
) -> int:
    """Train on batches of points, each paired with one of its neighbours, or on batches of pairs.

    Args:
        network: Network to train, on the device of the features.
        optimizer: Optimizer of its parameters.
        features: (P, F).
        near: (P, any), indices of the neighbours of each point; one is drawn at random.
        steps: Maximum number of steps.
        batch_size: Maximum number of points in a step.
        balance: Option of `neighbor_loss`.
        generator: Generator on the CPU.
        anneal: Lower the learning rate to zero along half a cosine.
        tol: Share of points; training stops when no more changed cluster in LOOK_EVERY steps.
        view: Augmented features; None uses `features`.
        report: Function that is told the progress.
        weights: Weight of each point, (P,); None for 1.
        pairs: Pairs to draw in place of points, (num_pairs, 2), all with the same chance.
        fill: Leave no cluster without points in the end, unless too many points are equal.

    Returns:
        The number of steps taken.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    probe = features[:PROBE]
    before = _assign(network, probe)
    batches = _endless(len(features if pairs is None else pairs), batch_size, generator)
    for step in range(1, steps + 1):
        if anneal:
            factor = _factor(step, steps, network)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
        points = next(batches)
        if pairs is None:
            drawn = torch.randint(near.shape[1], points.shape, generator=generator)
            points, drawn = points.to(near.device), drawn.to(near.device)
            both = torch.cat([points, near[points, drawn]])
        else:
            both = pairs[points.to(pairs.device)].T.flatten()
            points = both[: len(points)]
        shown = features[both] if view is None else view(both)
        logits, neighbor_logits = network(shown).chunk(2)
        weight = None if weights is None else weights[points]
        loss = neighbor_loss(logits, neighbor_logits, balance, weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        network.watch(features[points], logits.detach(), neighbor_logits.detach(), weight)
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
    for _ in range(_MAX_REVIVALS if fill else 0):
        sizes = torch.bincount(_assign(network, features), minlength=network.num_clusters)
        if sizes.all():
            break
        network.revive(features, sizes)
    return step


def _factor(step: int, steps: int, network: NeuralClusters) -> float:
    """Compute the factor of the learning rate, half a cosine; two where information merges.

    What is counted there are pairs in clusters that have come to rest.
    """
    if network.by_information and 0 < network.merge_at < steps:
        if step <= network.merge_at:
            steps = network.merge_at
        else:
            step, steps = step - network.merge_at, steps - network.merge_at
    return (1 + math.cos(math.pi * (step - 1) / steps)) / 2


@torch.no_grad()
def _assign(network: NeuralClusters, features: Tensor) -> Tensor:
    return torch.cat([network(rows).argmax(1) for rows in features.split(_ROWS)])


def _endless(count: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield batches of indices, epoch after epoch in random order; incomplete ones are left out."""
    size = min(batch_size, count)
    while True:
        order = torch.randperm(count, generator=generator)
        yield from order[: count - count % size].split(size)
