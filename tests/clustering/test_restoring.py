"""A fit or partial_fit of NeuralClustering that raises changes nothing, and neither does a copy."""

import copy
import pickle
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from sklearn.datasets import make_blobs
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from clusterformer.clustering import NeuralClustering

X = make_blobs(150, n_features=4, centers=3, random_state=0)[0]
WEIGHTS = np.random.default_rng(0).integers(1, 4, 150)


def small(**options: object) -> NeuralClustering:
    return NeuralClustering(3, **({"max_iter": 10, "random_state": 0} | options))


def interrupted(points: torch.Tensor) -> torch.Tensor:
    raise KeyboardInterrupt


def learnt(estimator: NeuralClustering) -> tuple:
    return (
        estimator.n_features_in_,
        estimator.n_iter_,
        estimator.labels_.tolist(),
        estimator.cluster_centers_.tolist(),
        estimator.predict_proba(X).tolist(),
        estimator.linkage_.tolist(),
    )


@pytest.mark.parametrize(
    ("options", "fit"),
    [
        ({"n_clusters": 500}, lambda estimator: estimator.fit(X[:, :2])),
        ({}, lambda estimator: estimator.fit(X[:, :2], sample_weight=-WEIGHTS)),
        ({}, lambda estimator: estimator.fit(X[:, :2], sample_weight=[1])),
        ({"learning_rate": 1e30}, lambda estimator: estimator.fit(2 * X)),
        ({"balance": 1e3}, lambda estimator: estimator.partial_fit(2 * X)),
        ({"augment": interrupted}, lambda estimator: estimator.fit(2 * X)),
        ({"augment": interrupted}, lambda estimator: estimator.partial_fit(2 * X)),
    ],
)
def test_nothing_learnt_is_lost(options: dict, fit: Callable[[NeuralClustering], object]) -> None:
    estimator, other = (small().partial_fit(X, sample_weight=WEIGHTS) for _ in range(2))
    before, parameters = learnt(estimator), estimator.get_params()
    with pytest.raises((ValueError, KeyboardInterrupt)):
        fit(estimator.set_params(**options))
    estimator.set_params(**{name: parameters[name] for name in options})
    assert learnt(estimator) == before
    # the optimizer and the random numbers go on as if nothing had happened
    assert learnt(estimator.partial_fit(X)) == learnt(other.partial_fit(X))


def test_a_first_part_that_diverges_is_no_start() -> None:
    estimator = small(learning_rate=1e30)
    with pytest.raises(ValueError, match="diverged"):
        estimator.partial_fit(X)
    with pytest.raises(NotFittedError):
        estimator.predict(X)
    estimator.set_params(learning_rate=5e-3).partial_fit(X)
    assert learnt(estimator) == learnt(small().partial_fit(X))


def test_a_fit_forgets_the_parts_before() -> None:
    used, new = small().partial_fit(X), small()
    assert learnt(used.fit(X).partial_fit(X)) == learnt(new.fit(X).partial_fit(X))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_goes_on_as_the_original_does(again: Callable) -> None:
    estimator = small().partial_fit(X)
    copied = again(estimator)
    for part in (X[:100], X[50:]):
        assert learnt(copied.partial_fit(part)) == learnt(estimator.partial_fit(part))
        copied = again(copied)


def test_a_warning_names_the_callers_line() -> None:
    with pytest.warns(ConvergenceWarning, match="duplicate points") as found:
        small().fit(np.repeat(X[:2], 20, axis=0))
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimator = small().fit(X)
        before = learnt(estimator)
        with pytest.raises(ConvergenceWarning):
            estimator.fit(np.repeat(X[:2], 20, axis=0))
        assert learnt(estimator) == before
