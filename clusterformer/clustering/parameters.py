"""Checks of the estimator's parameters, before any work."""

from __future__ import annotations

import math
from collections.abc import Hashable
from numbers import Integral, Real
from typing import Any

import torch

from clusterformer.clustering.network import initial_clusters
from clusterformer.devices import find_device
from clusterformer.errors import InputError, machine_memory

MAX_UNITS = 2**20
"""Maximum number of units of the hidden layer."""

MIN_PER_CLUSTER = 8
"""Minimum number of points per cluster in a batch, if there are so many points."""

SAMPLE = 2**17
"""Maximum number of points that `fit` trains on, drawn at random; it assigns all points."""

AUTO_CLUSTERS = 100
"""Number of clusters with which `n_clusters="auto"` starts, unless it merges by information."""

_FINE_CLUSTERS = 300  # with which merging by information starts, if each has so many points:
_PER_FINE_CLUSTER = 50

_COUNTS = ("n_neighbors", "n_components", "max_iter", "batch_size", "n_init")
_COPIES = 6  # of the memberships of a batch, in a training step


def check_parameters(estimator: Any) -> None:
    """Check the parameters of a NeuralClustering.

    Raises:
        ValueError: for the first parameter that is not allowed: its name, what is allowed, and
            what was given.
    """
    given = estimator.get_params(deep=False)
    auto = isinstance(given["n_clusters"], str) and given["n_clusters"] == "auto"
    if not (auto or _is_count(given["n_clusters"])):
        _refuse("n_clusters", 'an integer of at least 1, or "auto"', given["n_clusters"])
    is_array = not isinstance(given["merge"], Hashable)
    if is_array or given["merge"] not in (True, False, "information"):
        _refuse("merge", 'True, False or "information"', given["merge"])
    if auto and not given["merge"]:
        _refuse("merge", 'true with n_clusters="auto", which merges', given["merge"])
    if not (_is_finite(given["min_probability"]) and 0 <= given["min_probability"] < 1):
        _refuse("min_probability", "a number from 0 to below 1", given["min_probability"])
    for name in _COUNTS:
        if not _is_count(given[name]):
            _refuse(name, "an integer of at least 1", given[name])
    if given["hidden"] is not None and not (
        _is_count(given["hidden"]) and given["hidden"] <= MAX_UNITS
    ):
        _refuse("hidden", f"None or an integer from 1 to {MAX_UNITS}", given["hidden"])
    for name in ("balance", "tol"):
        if not (_is_finite(given[name]) and given[name] >= 0):
            _refuse(name, "a finite number of at least 0", given[name])
    if not (_is_finite(given["learning_rate"]) and given["learning_rate"] > 0):
        _refuse("learning_rate", "a finite number above 0", given["learning_rate"])
    if not isinstance(given["verbose"], Integral):
        _refuse("verbose", "an integer, 0 for silence", given["verbose"])
    if not (given["augment"] is None or callable(given["augment"])):
        _refuse("augment", "None or a function of points", given["augment"])
    _check_device(given["device"])


def check_fitted(estimator: Any, clusters: int, units: int | None) -> None:
    """Check that a model has the clusters and hidden units that the parameters say.

    Raises:
        ValueError: with what it has, and the parameter.
    """
    if estimator.n_clusters not in ("auto", clusters):
        raise ValueError(f"{clusters} centers, but n_clusters is {estimator.n_clusters}")
    if estimator.hidden != units:
        raise ValueError(f"{units} units, but hidden is {estimator.hidden}")


def check_continued(estimator: Any, components: int, by_information: bool) -> None:
    """Check that `partial_fit` can go on with the components and the merging of a fit.

    Raises:
        ValueError: with what the fit had, and the parameter.
    """
    if min(estimator.n_components, estimator.n_features_in_) != components:
        raise ValueError(f"{components} components, but n_components is {estimator.n_components}")
    if (estimator.merge == "information") != by_information:
        fitted = "merges by information" if by_information else "does not merge by information"
        raise ValueError(f"this model {fitted}, but merge is {estimator.merge!r}")


def first_clusters(estimator: Any, num_points: int = SAMPLE) -> int:
    """Return the number of clusters that are wanted, or with which "auto" starts."""
    if estimator.n_clusters != "auto":
        return estimator.n_clusters
    return max(1, min(AUTO_CLUSTERS, num_points // MIN_PER_CLUSTER))


def fine_clusters(estimator: Any, num_points: int) -> int | None:
    """Return with how many clusters merging by information starts; None for the others."""
    if estimator.merge != "information":
        return None
    fine = min(_FINE_CLUSTERS, num_points // _PER_FINE_CLUSTER)
    if estimator.n_clusters == "auto":
        return max(fine, first_clusters(estimator, num_points))
    return max(fine, initial_clusters(estimator.n_clusters))


def searched_neighbors(estimator: Any) -> int:
    """Return how many neighbours are searched; those that are mutual stay if information merges."""
    return estimator.n_neighbors * (2 if estimator.merge == "information" else 1)


def least_clusters(estimator: Any) -> int:
    """Return the least number of points that a fit needs."""
    return 1 if estimator.n_clusters == "auto" else estimator.n_clusters


def check_memory(estimator: Any, num_points: int) -> None:
    """Refuse numbers of clusters and neighbours for which this machine has too little memory.

    Raises:
        ValueError: with the parameter, the estimated need and the memory, in GiB.
    """
    clusters = first_clusters(estimator)
    num_points = min(num_points, SAMPLE)
    batch = min(num_points, max(estimator.batch_size, MIN_PER_CLUSTER * clusters))
    needed = {
        "n_clusters": 4 * clusters * (2 * _COPIES * batch + 2 * clusters),
        "n_neighbors": 2 * 8 * num_points * min(searched_neighbors(estimator), num_points - 1),
    }
    memory = machine_memory()
    if torch.device(estimator.device).type == "cuda":
        memory = torch.cuda.get_device_properties(estimator.device).total_memory
    for name, size in needed.items():
        if size > memory:
            _refuse(
                name,
                f"smaller: {num_points} points need about {size / 2**30:.0f} GiB, "
                f"there are {memory / 2**30:.0f}",
                getattr(estimator, name),
            )


def _check_device(device: Any) -> None:
    try:
        find_device(device)
    except InputError:
        _refuse("device", "'cpu', 'cuda' or a GPU of this machine such as 'cuda:1'", device)


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and value is not True and int(value) >= 1


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _refuse(name: str, allowed: str, value: Any) -> None:
    raise ValueError(
        f"The {name!r} parameter of NeuralClustering must be {allowed}. Got {value!r} instead."
    )
