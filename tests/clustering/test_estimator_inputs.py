"""NeuralClustering with weights, noise, tensors, and floats of other sizes."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import check_estimator

from clusterformer.clustering import NeuralClustering, estimator, evaluation, fitting


def small(n_clusters: int | str = 3, **options: object) -> NeuralClustering:
    return NeuralClustering(n_clusters, **({"max_iter": 60, "random_state": 0} | options))


@pytest.fixture(scope="module")
def blobs() -> tuple[np.ndarray, np.ndarray]:
    return make_blobs(150, n_features=2, centers=3, cluster_std=0.5, random_state=0)


@pytest.mark.parametrize("allowed", [[0, 1, 2, 3], [0, 1], [3]])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_a_weight_is_that_many_copies(
    method: str, allowed: list[int], blobs: tuple[np.ndarray, np.ndarray]
) -> None:
    x, _ = blobs
    weights = np.random.default_rng(0).choice(allowed, len(x))
    weighted = getattr(small(), method)(x, sample_weight=weights)
    copied = getattr(small(), method)(np.repeat(x, weights, axis=0))
    np.testing.assert_array_equal(weighted.predict_proba(x), copied.predict_proba(x))
    np.testing.assert_allclose(weighted.cluster_centers_, copied.cluster_centers_)
    np.testing.assert_allclose(weighted.linkage_, copied.linkage_)
    weighted, copied = weighted.partial_fit(x + 1), copied.partial_fit(x + 1)
    np.testing.assert_allclose(weighted.cluster_centers_, copied.cluster_centers_)


def test_copies_of_points_do_not_raise_the_score() -> None:
    """The nearest neighbour of a copy would be a copy, which shares any cluster."""
    x = np.random.default_rng(0).normal(size=(200, 4))
    fitted = small(20).fit(x)
    assert fitted.score(np.repeat(x, 3, axis=0)) == pytest.approx(fitted.score(x), rel=1e-6)
    assert fitted.score(np.r_[x, x[:50]]) < fitted.score(x) + 0.05


def test_points_without_weight_have_no_cluster_of_their_own(
    blobs: tuple[np.ndarray, np.ndarray],
) -> None:
    x, y = blobs
    fitted = small(2).fit(x, sample_weight=(y != 2).astype(float))
    assert adjusted_rand_score(y[y != 2], fitted.labels_[y != 2]) == 1
    assert len(fitted.labels_) == len(x)


def test_equal_weights_are_none(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x, _ = blobs
    equal = small().fit(x, sample_weight=np.full(len(x), 7.0))
    np.testing.assert_array_equal(equal.transform(x), small().fit(x).transform(x))


@pytest.mark.parametrize("scale", [2.0**-1040, 2.0**1000])
@pytest.mark.parametrize("dtype", [np.float32, float])
def test_only_ratios_of_weights_count(
    scale: float, dtype: type, blobs: tuple[np.ndarray, np.ndarray]
) -> None:
    x = blobs[0].astype(dtype)
    weights = np.random.default_rng(0).integers(1, 4, len(x))
    usual, scaled = (small().fit(x, sample_weight=each) for each in (weights, scale * weights))
    np.testing.assert_array_equal(scaled.cluster_centers_, usual.cluster_centers_)
    np.testing.assert_array_equal(scaled.predict_proba(x), usual.predict_proba(x))


@pytest.mark.parametrize("repeated", [False, True])
def test_the_offset_of_data_does_not_matter_where_some_of_many_points_give_the_components(
    repeated: bool, blobs: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of some points have another mean than those of all, also of equal points joined."""
    monkeypatch.setattr(estimator, "_COMPONENT_SAMPLE", 60)
    x, y = blobs
    weights = np.random.default_rng(0).choice([1, 9], len(x))
    if repeated:
        x, y, weights = np.repeat(x, weights, axis=0), np.repeat(y, weights), None
    fitted = small().fit(x + 1e5, sample_weight=weights)
    assert adjusted_rand_score(y, fitted.labels_) > 0.95


@pytest.mark.parametrize("min_probability", [0.0, 0.9])
@pytest.mark.parametrize("weighted", [False, True])
def test_many_points_are_answered_in_chunks_as_at_once(
    weighted: bool,
    min_probability: float,
    blobs: tuple[np.ndarray, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, weights = blobs[0], np.arange(150.0) if weighted else None
    whole = small(min_probability=min_probability).fit(x, sample_weight=weights)
    expected = whole.predict(x), whole.predict_proba(x), whole.transform(x), [whole.score(x)]
    monkeypatch.setattr(evaluation, "ENTRIES", 23 * 3)  # 23 rows for three clusters
    monkeypatch.setattr(evaluation, "_ROWS", 11)
    monkeypatch.setattr(evaluation, "_BLOCK", 7)
    monkeypatch.setattr(fitting, "_ROWS", 13)
    found = whole.predict(x), whole.predict_proba(x), whole.transform(x), [whole.score(x)]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)
    pieces = small(min_probability=min_probability).fit(x, sample_weight=weights)
    np.testing.assert_array_equal(pieces.labels_, whole.labels_)
    np.testing.assert_allclose(pieces.cluster_centers_, whole.cluster_centers_, rtol=1e-5)
    np.testing.assert_allclose(pieces.linkage_, whole.linkage_, rtol=1e-5)


@pytest.mark.parametrize("largest", [1e100, 1e300])
def test_one_weight_far_above_the_others_leaves_all_finite(largest: float) -> None:
    x = make_blobs(3000, n_features=3, random_state=0)[0].astype(np.float32)
    weights = np.r_[largest, np.ones(2999)]
    fitted = small(batch_size=256, max_iter=30).fit(x, sample_weight=weights)
    assert np.isfinite(fitted.cluster_centers_).all()
    assert np.abs(fitted.cluster_centers_ - x[0]).sum(1).min() < 1e-5


def test_a_point_without_weight_is_no_sample(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    weights = np.r_[np.ones(2), np.zeros(148)]
    small(2).fit(blobs[0], sample_weight=weights)
    for method in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match="n_samples=2 with a sample_weight above 0 should be"):
            getattr(small(), method)(blobs[0], sample_weight=weights)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(149), r"sample_weight.shape == \(149,\), expected \(150,\)"),
        (np.r_[-1.0, np.ones(149)], "Negative values in sample_weight: -1; allowed is 0 or more"),
        (np.r_[np.nan, np.ones(149)], "sample_weight contains NaN or infinity"),
        (np.zeros(150), "at least one non-zero number"),
        (np.ones((150, 2)), "must be 1D array"),
        (["a"] * 150, "sample_weight must be numbers"),
    ],
)
def test_weights_that_are_none_are_refused(
    weights: object, message: str, blobs: tuple[np.ndarray, np.ndarray]
) -> None:
    for method in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match=message) as error:
            getattr(small(), method)(blobs[0], sample_weight=weights)
        assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@pytest.mark.parametrize("scale", [0.0, 1e5])
def test_labels_are_what_predict_says_of_points_that_are_nearly_one(scale: float) -> None:
    x = np.zeros((600, 8), np.float32)
    if scale:  # one point so far off that all others are nearly equal
        x = np.random.default_rng(0).normal(size=x.shape).astype(np.float32)
        x[0] *= scale
    fitted = NeuralClustering(4, max_iter=30, random_state=0, merge=False).fit(x)
    np.testing.assert_array_equal(fitted.labels_, fitted.predict(x))


def test_noise_is_what_no_cluster_is_probable_for() -> None:
    x, _ = make_blobs(150, centers=3, cluster_std=1.0, random_state=0)
    fitted = small(min_probability=0.95).fit(x)
    largest = fitted.predict_proba(x).max(1)
    assert 0 < (largest < 0.95).sum() < len(x) / 2
    np.testing.assert_array_equal(fitted.labels_ == -1, largest < 0.95)
    np.testing.assert_array_equal(fitted.predict(x), fitted.labels_)
    certain = fitted.labels_ >= 0
    every = small().fit(x)
    np.testing.assert_array_equal(every.labels_[certain], fitted.labels_[certain])
    assert (clone(fitted).set_params(min_probability=0.0).fit(x).labels_ >= 0).all()


def test_tensors_give_tensors(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x = torch.tensor(blobs[0], dtype=torch.float32, requires_grad=True)
    fitted = small().fit(x, sample_weight=torch.arange(150))
    from_numpy = small().fit(blobs[0].astype(np.float32), sample_weight=np.arange(150))
    for found, expected in (
        (fitted.labels_, from_numpy.labels_),
        (fitted.cluster_centers_, from_numpy.cluster_centers_),
        (fitted.predict(x), from_numpy.labels_),
        (fitted.predict_proba(x), from_numpy.predict_proba(blobs[0].astype(np.float32))),
        (fitted.transform(x), from_numpy.transform(blobs[0].astype(np.float32))),
    ):
        assert isinstance(found, torch.Tensor)
        np.testing.assert_array_equal(found.numpy(), expected)
    assert isinstance(fitted.predict(blobs[0]), np.ndarray)
    assert isinstance(small().fit_predict(x.bfloat16()), torch.Tensor)
    with pytest.raises(ValueError, match="tensors must be dense"):
        fitted.predict(x.detach().to_sparse())


def test_what_tensors_fitted_is_saved_and_pickled(
    blobs: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    x = torch.tensor(blobs[0])
    fitted = small(min_probability=0.5).fit(x, sample_weight=torch.arange(150))
    fitted.save(tmp_path / "m")
    for again in (NeuralClustering.load(tmp_path / "m"), pickle.loads(pickle.dumps(fitted))):
        assert again.predict(x).equal(fitted.predict(x))
        np.testing.assert_array_equal(again.linkage_, fitted.linkage_)
        assert (again.n_clusters_, again.min_probability) == (3, 0.5)
        again.partial_fit(x)


@pytest.mark.gpu
def test_a_tensor_of_a_gpu_gives_one_there(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x = torch.tensor(blobs[0], device="cuda")
    fitted = small(device="cuda").fit(x)
    assert fitted.labels_.is_cuda
    assert fitted.predict_proba(x).is_cuda


@pytest.mark.skipif(not os.environ.get("SCIPY_ARRAY_API"), reason="SCIPY_ARRAY_API is not set")
def test_scikit_learns_array_api_checks_pass() -> None:
    results = check_estimator(NeuralClustering(max_iter=5), on_fail=None)
    assert not [result for result in results if result["status"] == "failed"]


def test_float16_from_a_memory_map(blobs: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    x, y = blobs
    np.save(tmp_path / "x.npy", x.astype(np.float16))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    fitted = small().fit(mapped)
    assert adjusted_rand_score(y, fitted.predict(mapped)) > 0.95
    assert fitted.cluster_centers_.dtype == fitted.predict_proba(mapped).dtype == np.float32


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_float16_that_is_not_finite_is_refused_before_training(
    blobs: tuple[np.ndarray, np.ndarray], value: float
) -> None:
    x = blobs[0].astype(np.float16)
    x[-1, 0] = value
    fitted = small().fit(blobs[0])
    for method in (small().fit, fitted.predict):
        with pytest.raises(ValueError, match=r"Input X contains (NaN|infinity)"):
            method(x)


def test_points_without_weight_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimator, "SAMPLE", 50)
    weights = np.r_[np.zeros(1000), np.ones(100)]
    rows = estimator._draw_rows(1100, weights, np.random.RandomState(0))
    assert len(rows) == 50
    assert rows.min() >= 1000


def test_centers_start_kmeans(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    from sklearn.cluster import KMeans

    x, y = blobs
    fitted = small().fit(x)
    kmeans = KMeans(3, init=fitted.cluster_centers_, n_init=1).fit(x)
    assert adjusted_rand_score(y, kmeans.labels_) > 0.95


# The hierarchy


def test_points_of_another_precision_get_the_same_score_and_go_on() -> None:
    x = make_blobs(60, 4, centers=3, random_state=0)[0]
    model = NeuralClustering(3, max_iter=20, random_state=0).fit(x.astype(np.float32))
    assert model.score(x) == pytest.approx(model.score(x.astype(np.float32)), rel=1e-4)
    assert model.score(np.rint(x).astype(int)) > 0
    model.partial_fit(x)


@pytest.mark.parametrize(
    "mode",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["no_grad", "inference_mode", "autocast"],
)
def test_the_callers_mode_of_torch_changes_nothing(mode, blobs) -> None:
    x, options = blobs[0].astype(np.float32), {"max_iter": 10, "hidden": 8}
    expected = small(**options).fit(x).partial_fit(x)
    with mode():
        found = small(**options).fit(torch.from_numpy(x)).partial_fit(torch.from_numpy(x))
        memberships = found.predict_proba(torch.from_numpy(x))
        assert found.score(x) == expected.score(x)
    np.testing.assert_array_equal(memberships.numpy(), expected.predict_proba(x))


@pytest.mark.parametrize(
    "options", [{"hidden": 8}, {"n_clusters": "auto"}, {"merge": "information"}]
)
def test_the_default_dtype_of_torch_changes_nothing(options, blobs) -> None:
    x = blobs[0].astype(np.float32)
    options = {"max_iter": 20, "n_init": 2} | options
    expected = small(**options).fit(x, sample_weight=np.arange(len(x))).partial_fit(x)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found = small(**options).fit(x, sample_weight=np.arange(len(x))).partial_fit(x)
        memberships = found.predict_proba(x)
        assert found.score(x) == expected.score(x)
    finally:
        torch.set_default_dtype(before)
    np.testing.assert_array_equal(memberships, expected.predict_proba(x))
    np.testing.assert_array_equal(found.labels_, expected.labels_)
