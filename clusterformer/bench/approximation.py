"""Error of mechanisms against full attention on a trained model's queries, keys and values."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from clusterformer.attention import AttentionCore
from clusterformer.bench.recording import Inputs, relative_error
from clusterformer.bench.report import Row
from clusterformer.bench.subjects import choose_mechanisms, takes_clusters
from clusterformer.bench.timing import time_in_turns
from clusterformer.errors import InputError, making

DEFAULT = ("MultipoleAttention", "ClusteredAttention", "ImprovedClusteredAttention")
CAPS = {1: 1.5, 3: 2.0, 5: 4.0}
"""Cap on cluster sizes by iterations of k-means, from table 1 of the MuSe paper; else 4."""

Form = tuple[str, dict[str, Any]]
"""Name of a mechanism, and its options."""


def measure(
    layers: Sequence[Inputs], forms: Sequence[Form], *, causal: bool = False, repeats: int = 7
) -> Iterator[Row]:
    """Measure error and time of mechanisms against full attention, which comes first.

    Args:
        layers: Inputs of every layer.
        forms: Mechanisms without weights, and their options.
        causal: Whether all have their causal form.
        repeats: Measurements of the time, forward and backward, of all layers.

    Yields:
        One row for full attention and each form, with the error of every layer and their mean.

    Raises:
        InputError: if there is no such mechanism, or one has weights, or shares queries and keys;
            or if layers differ in their number of heads.
    """
    if len({layer.q.shape[1] for layer in layers}) > 1:
        numbers = ", ".join(str(layer.q.shape[1]) for layer in layers)
        raise InputError(f"layers must have equal numbers of heads without a window, got {numbers}")
    forms = [("FullAttention", {}), *forms]
    kinds = choose_mechanisms([name for name, _ in forms])
    heads, width = layers[0].q.shape[1], layers[0].q.shape[-1]
    cores: list[AttentionCore] = []
    for name, options in forms:
        with making(name):
            cores.append(kinds[name](heads * width, heads, causal=causal, **options))
        if cores[-1].shared_qk:
            raise InputError(f"{name} shares queries and keys, and this model has keys of its own")
    if weighted := [core for core in cores if any(True for _ in core.parameters())]:
        raise InputError(f"{type(weighted[0]).__name__} has weights, which this model lacks")
    steps = {str(index): partial(_step, core, layers) for index, core in enumerate(cores)}
    samples = time_in_turns(steps, repeats, "cpu")
    for (name, options), core, times in zip(forms, cores, samples.values(), strict=True):
        errors = [_error(core, cores[0], layer) for layer in layers]
        yield {
            "mechanism": name,
            "options": options,
            "relative_squared_error": statistics.mean(errors),
            "of_layers": errors,
            "median_ms": statistics.median(times),
            "samples_ms": times,
        }


def forms_of(
    name: str,
    num_clusters: Sequence[int],
    iterations: Sequence[int],
    caps: Sequence[float] = (),
) -> list[Form]:
    """List the options under which a mechanism is measured.

    For multipole attention they are those of tables 1 and 3 of its paper, and exact clusters; with
    `caps` those of tables 5 and 6.

    Args:
        name: Class of the mechanism.
        num_clusters: Numbers of clusters, of a mechanism that has them.
        iterations: Iterations of k-means, of multipole attention.
        caps: Caps on cluster sizes, of multipole attention, each with all iterations; none: that of
            table 1 for each number of iterations.
    """
    if not takes_clusters(choose_mechanisms([name])[name]):
        return [(name, {})]
    if name != "MultipoleAttention":
        return [(name, {"num_clusters": number}) for number in num_clusters]
    grid = [
        {"num_clusters": number, "iterations": count, "cap": cap}
        for number in num_clusters
        for count in iterations
        for cap in caps or [CAPS.get(count, 4.0)]
    ]
    middle = grid[len(grid) // 2]
    ablations = [middle | {part: False} for part in ("dipole", "two_stage", "monopole")]
    damped = middle | {"damped": True}
    exact = [damped | {"exact_clusters": count} for count in (1, 2, 4)]
    return [(name, options) for options in (*grid, *ablations, damped, *exact)]


def _step(core: AttentionCore, layers: Sequence[Inputs]) -> None:
    for layer in layers:
        q, k, v = (x.detach().requires_grad_() for x in layer)
        core(q, k, v, hidden=q)[0].backward(layer.v)


@torch.no_grad()
def _error(core: AttentionCore, exact: AttentionCore, layer: Inputs) -> float:
    values, full = (mechanism(*layer, hidden=layer.q)[0] for mechanism in (core, exact))
    return relative_error(values, full)
