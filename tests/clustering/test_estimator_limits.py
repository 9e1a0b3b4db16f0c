"""NeuralClustering in threads, on unusual arrays, and with parameters that make no sense."""

import math
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

from clusterformer.clustering import NeuralClustering
from clusterformer.clustering.images import RandomAffine
from clusterformer.errors import machine_memory


def small(n_clusters: int = 3, **options: object) -> NeuralClustering:
    return NeuralClustering(n_clusters, **({"max_iter": 60, "random_state": 0} | options))


@pytest.fixture
def blobs() -> tuple[np.ndarray, np.ndarray]:
    return make_blobs(120, n_features=4, centers=3, cluster_std=0.5, random_state=0)


def noisy(points: torch.Tensor) -> torch.Tensor:
    return points + 0.1 * torch.randn(points.shape)  # draws from the global generator


@pytest.mark.parametrize("augment", [None, RandomAffine(2, 2), noisy])
def test_a_seed_gives_the_same_bits_in_threads(
    augment: object, blobs: tuple[np.ndarray, np.ndarray]
) -> None:
    x, _ = blobs
    seeds = [0, 1, 2, 3] * 2

    def bits(seed: int) -> bytes:
        options = {"hidden": 8, "max_iter": 10, "augment": augment}
        fitted = small(random_state=seed, **options).fit(x)
        return fitted.predict_proba(x).tobytes() + fitted.labels_.tobytes()

    alone = {seed: bits(seed) for seed in set(seeds)}
    assert len(set(alone.values())) == 4
    state = torch.get_rng_state()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(bits, seeds))
    assert found == [alone[seed] for seed in seeds]
    assert state.equal(torch.get_rng_state())


def test_reversed_rows_and_columns_are_the_same_points(
    blobs: tuple[np.ndarray, np.ndarray],
) -> None:
    x, _ = blobs
    fitted = small().fit(x[::-1, ::-1])
    copied = small().fit(np.ascontiguousarray(x[::-1, ::-1]))
    np.testing.assert_array_equal(fitted.labels_, copied.labels_)
    np.testing.assert_array_equal(fitted.predict(x[::-1, ::-1]), fitted.labels_)
    np.testing.assert_array_equal(
        fitted.transform(np.asfortranarray(x)), fitted.transform(x.copy())
    )


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(np.float32, 1e-30), (np.float32, 1e20), (np.float32, 1e28), (float, 1e-200), (float, 1e290)],
)
def test_values_far_from_1_are_clustered_as_well(
    dtype: type, scale: float, blobs: tuple[np.ndarray, np.ndarray]
) -> None:
    x, y = blobs
    x = (x * scale).astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = small().fit(x)
    assert adjusted_rand_score(y, fitted.labels_) > 0.95
    assert adjusted_rand_score(y, fitted.predict(x)) > 0.95
    assert np.isfinite(fitted.cluster_centers_).all()
    assert np.isfinite(fitted.predict_proba(x)).all()


def test_values_too_large_are_refused(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x = blobs[0].astype(np.float32)
    with pytest.raises(ValueError, match=r"too large for float32; allowed is up to 2.5e\+30"):
        small().fit(x * np.float32(1e36))
    far = x[:1] * 1e20
    with pytest.raises(ValueError, match=r"1e\+15 times as far from the mean"):
        small().fit(x).predict(far)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("n_clusters", value) for value in (0, -1, 2.5, "3", True, None, math.nan)],
        *[("hidden", value) for value in (0, -1, 0.5, 10**12, "8")],
        *[(name, value) for name in ("balance", "tol") for value in (-1, math.nan, math.inf, "1")],
        *[("learning_rate", value) for value in (0, -1e-3, math.nan, math.inf, None)],
        *[("device", value) for value in ("foo", "", None, "meta", "cuda:99")],
        *[(name, 0) for name in ("n_neighbors", "n_components", "max_iter", "batch_size")],
        ("n_init", 0),
        ("augment", "flip"),
        *[("merge", value) for value in ("chance", None, np.array([1, 2]), [True])],
        *[("verbose", value) for value in ("x", None, 0.5)],
    ],
)
def test_parameters_that_make_no_sense_are_named(
    name: str, value: object, blobs: tuple[np.ndarray, np.ndarray]
) -> None:
    refused = rf"The '{name}' parameter of NeuralClustering must be"
    with pytest.raises(ValueError, match=refused) as error:
        small(**{name: value}).fit(blobs[0])
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=rf"'{name}'"):
        small(**{name: value}).partial_fit(blobs[0])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n_clusters": 4}, "3 centers, but n_clusters is 4"),
        ({"n_components": 1}, "4 components, but n_components is 1"),
        ({"merge": "information"}, "does not merge by information, but merge is 'information'"),
    ],
)
def test_what_needs_a_new_fit_is_not_continued(
    changed: dict, message: str, blobs: tuple[np.ndarray, np.ndarray]
) -> None:
    fitted = small().fit(blobs[0]).set_params(**changed)
    with pytest.raises(ValueError, match=message):
        fitted.partial_fit(blobs[0])


def test_more_memory_than_there_is_is_not_asked_for() -> None:
    x = np.zeros((2**17, 1), dtype=np.float32)
    with pytest.raises(ValueError, match=r"'n_clusters' parameter .* need about .* GiB"):
        small(120_000).fit(x)
    with pytest.raises(ValueError, match=r"'n_neighbors' parameter .* need about .* GiB"):
        small(n_neighbors=2**17).fit(x)
    fitting = machine_memory() // (16 * len(x))
    twice = small(n_neighbors=fitting * 3 // 4, merge="information")  # searches twice as many
    with pytest.raises(ValueError, match=r"'n_neighbors' parameter .* need about .* GiB"):
        twice.fit(x)


@pytest.mark.parametrize("options", [{"learning_rate": 1e30}, {"balance": 1e3}])
def test_a_training_that_diverges_is_no_result(
    options: dict, blobs: tuple[np.ndarray, np.ndarray]
) -> None:
    with pytest.raises(ValueError, match="the training diverged; lower learning_rate"):
        small(**options).fit(blobs[0])


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        (lambda points: points * math.nan, "augment returned NaN or infinity"),
        (lambda points: points[:1], r"must return a tensor of shape \(240, 4\), got \(1, 4\)"),
        (lambda points: points.numpy(), "must return a tensor .* got ndarray"),
    ],
)
def test_variants_that_are_no_points_are_refused(
    augment: object, message: str, blobs: tuple[np.ndarray, np.ndarray]
) -> None:
    with pytest.raises(ValueError, match=message):
        small(augment=augment).fit(blobs[0])
