"""NeuralClustering: scikit-learn's checks, its manners, and clusters better than k-means."""

import copy
import math
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, make_blobs
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from clusterformer.clustering import NeuralClustering
from clusterformer.clustering.measures import measures
from clusterformer.clustering.neighbors import EXACT, PrincipalComponents, nearest_neighbors
from clusterformer.clustering.network import NeuralClusters, neighbor_loss


def small(n_clusters: int = 3, **options: object) -> NeuralClustering:
    return NeuralClustering(n_clusters, **({"max_iter": 60, "random_state": 0} | options))


@pytest.fixture
def blobs() -> tuple[np.ndarray, np.ndarray]:
    return make_blobs(120, n_features=2, centers=3, cluster_std=0.5, random_state=0)


def test_scikit_learns_checks_pass_with_no_exception() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(NeuralClustering(max_iter=10), on_fail=None)
    failed = [result for result in results if result["status"] not in ("passed", "skipped")]
    assert not failed
    # what is skipped is so for every estimator, unless SCIPY_ARRAY_API is set
    skipped = {result["check_name"] for result in results if result["status"] == "skipped"}
    assert all(name.startswith("check_array_api_") for name in skipped)


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_neither_scale_nor_offset_of_the_data_matters(
    scale: float, offset: float, blobs: tuple[np.ndarray, np.ndarray]
) -> None:
    x, y = blobs
    assert adjusted_rand_score(y, small().fit_predict(x * scale + offset * scale)) > 0.95


def test_one_dimension_is_enough() -> None:
    x, y = make_blobs(90, n_features=1, centers=[[0.0], [3.0], [6.0]], cluster_std=0.2)
    assert adjusted_rand_score(y, small().fit_predict(x)) > 0.95


def test_it_beats_kmeans_on_digits() -> None:
    x, y = load_digits(return_X_y=True)
    tests = np.arange(len(x)) % 5 == 4

    def accuracy(clustering: KMeans | NeuralClustering) -> float:
        clustering.fit(x[~tests])
        found = clustering.predict(x[tests])
        return measures(clustering.labels_, y[~tests], found, y[tests], x[tests])["accuracy"]

    ours = accuracy(NeuralClustering(30, max_iter=200, random_state=0))
    theirs = np.mean([accuracy(KMeans(30, n_init=1, random_state=seed)) for seed in range(3)])
    assert ours > theirs + 0.01


@pytest.mark.parametrize("hidden", [None, 8])
def test_memberships_are_probabilities_and_agree_with_predict(
    hidden: int | None, blobs: tuple[np.ndarray, np.ndarray]
) -> None:
    x, _ = blobs
    fitted = small(hidden=hidden).fit(x)
    p = fitted.predict_proba(x)
    np.testing.assert_allclose(p.sum(1), 1)
    np.testing.assert_array_equal(p.argmax(1), fitted.predict(x))
    np.testing.assert_array_equal(fitted.transform(x).argmin(1), fitted.labels_)


def test_centers_are_means_weighted_by_membership(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x, _ = blobs
    fitted = small().fit(x)
    p = fitted.predict_proba(x)
    np.testing.assert_allclose(fitted.cluster_centers_, p.T @ x / p.sum(0)[:, None])


def test_score_is_near_log_of_the_clusters_where_neighbours_share_them(
    blobs: tuple[np.ndarray, np.ndarray],
) -> None:
    x, _ = blobs
    assert math.log(3) - 0.2 < small().fit(x).score(x) <= math.log(3) + 1e-6


def test_the_best_of_several_starts_is_kept() -> None:
    x, _ = make_blobs(100, centers=6, cluster_std=0.3, random_state=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no cluster is empty, however short the training
        one = small(6, max_iter=15).fit(x).score(x)
    assert small(6, max_iter=15, n_init=4).fit(x).score(x) >= one


def test_streaming_learns_as_well_from_a_memory_map(tmp_path: Path) -> None:
    x, y = make_blobs(6000, n_features=8, centers=4, cluster_std=0.5, random_state=0)
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    streamed = small(4, batch_size=256)
    for start in range(0, 6000, 1000):
        streamed.partial_fit(mapped[start : start + 1000])
    assert adjusted_rand_score(y, streamed.predict(mapped)) > 0.95
    assert adjusted_rand_score(y, small(4).fit(mapped).labels_) > 0.95


@pytest.mark.parametrize("count", [1, 10])
def test_a_few_points_of_one_cluster_do_not_take_the_others(
    count: int, blobs: tuple[np.ndarray, np.ndarray]
) -> None:
    x, y = blobs
    fitted = small().fit(x)
    before = fitted.predict(x)
    fitted.partial_fit(x[y == 0][:count])
    assert adjusted_rand_score(before, fitted.predict(x)) > 0.95


def flipped(points: torch.Tensor) -> torch.Tensor:
    return points * (2 * torch.randint(2, (len(points), 1)) - 1)


def test_what_augmentation_makes_of_a_point_shares_its_cluster() -> None:
    centers = [[4, 0], [-4, 0], [0, 4], [0, -4]]
    x, y = make_blobs(400, centers=centers, cluster_std=0.3, random_state=0)
    blind = small(2, hidden=16, augment=flipped).fit(x)
    assert adjusted_rand_score(y // 2, blind.labels_) > 0.95
    streamed = small(2, hidden=16, augment=flipped, batch_size=64)
    for _ in range(20):
        streamed.partial_fit(x)
    assert adjusted_rand_score(y // 2, streamed.predict(x)) > 0.95


def test_a_function_of_c_augments_as_one_of_python() -> None:
    x = np.abs(make_blobs(150, centers=3, random_state=0)[0])
    by_c = small(augment=torch.abs).fit(x)
    by_python = small(augment=lambda points: points.abs()).fit(x)
    np.testing.assert_array_equal(by_c.transform(x), by_python.transform(x))


def test_a_seed_repeats_a_fit_and_leaves_torchs_numbers_alone(
    blobs: tuple[np.ndarray, np.ndarray],
) -> None:
    x, _ = blobs
    fitted = small(hidden=16, augment=flipped, max_iter=5).fit(x)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    again = small(hidden=16, augment=flipped, max_iter=5).fit(x)
    assert state.equal(torch.get_rng_state())
    np.testing.assert_array_equal(again.transform(x), fitted.transform(x))


def test_a_pickle_predicts_the_same_and_goes_on(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x, _ = blobs
    fitted = small().partial_fit(x)
    loaded = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(loaded.predict_proba(x), fitted.predict_proba(x))
    loaded.partial_fit(x)


def test_pipeline_and_grid_search(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = blobs
    pipeline = make_pipeline(StandardScaler(), small())
    grid = {"neuralclustering__n_clusters": [2, 3]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(x)
    assert search.best_params_["neuralclustering__n_clusters"] == 3
    assert adjusted_rand_score(y, search.predict(x)) > 0.9


def test_pandas_gives_names() -> None:
    pandas = pytest.importorskip("pandas")
    x = pandas.DataFrame(make_blobs(40, random_state=0)[0], columns=["a", "b"])
    fitted = small().set_output(transform="pandas").fit(x)
    assert list(fitted.feature_names_in_) == ["a", "b"]
    assert list(fitted.transform(x).columns) == [f"neuralclustering{i}" for i in range(3)]


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float16, np.float32])
def test_any_kind_of_number(dtype: type) -> None:
    x, y = make_blobs(90, centers=[[20, 20], [100, 20], [20, 100]], cluster_std=2, random_state=0)
    assert adjusted_rand_score(y, small().fit_predict(x.astype(dtype))) > 0.95


def test_constant_columns_and_duplicates() -> None:
    x = np.repeat([[0.0, 1.0], [5.0, 1.0]], 20, axis=0)
    with pytest.warns(ConvergenceWarning, match="distinct clusters"):
        labels = small(4).fit_predict(x)
    assert len(set(labels[:20])) == len(set(labels[20:])) == 1
    with pytest.warns(ConvergenceWarning, match=r"distinct clusters \(1\)"):
        small(2).fit(np.ones((10, 3)))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([[0.0, np.nan]] * 9, "contains NaN"),
        ([[0.0, np.inf]] * 9, "contains infinity"),
        ([[0.0, 1.0]], "n_samples=1 should be >= n_clusters=3"),
        ([0.0, 1.0], "Expected 2D array, got 1D array instead"),
    ],
)
def test_bad_points_are_refused_as_scikit_learn_does(x: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small().fit(x)


def test_bad_use_is_refused_as_scikit_learn_does(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x, _ = blobs
    with pytest.raises(NotFittedError):
        small().predict(x)
    with pytest.raises(ValueError, match="X has 1 features, but NeuralClustering is expecting 2"):
        small().fit(x).predict(x[:, :1])
    with pytest.raises(ValueError, match="'n_clusters' parameter"):
        small(0).fit(x)


@pytest.mark.gpu
def test_a_gpu_finds_the_same_groups(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = blobs
    fitted = small(device="cuda").fit(x)
    assert adjusted_rand_score(y, fitted.labels_) > 0.95
    loaded = pickle.loads(pickle.dumps(fitted)).set_params(device="cpu")
    np.testing.assert_allclose(loaded.transform(x), fitted.transform(x), atol=1e-6)
    fitted.partial_fit(x)
    moved = pickle.loads(pickle.dumps(fitted)).set_params(device="cpu").partial_fit(x)
    moved.set_params(device="cuda").partial_fit(x)  # with the state of its optimizer


# The method


def test_neighbor_loss_is_the_likelihood_of_pairs_written_out() -> None:
    logits, neighbor_logits = torch.randn(2, 5, 3)
    p, q = logits.softmax(-1).tolist(), neighbor_logits.softmax(-1).tolist()
    mean = [sum(row[c] for row in p + q) / 10 for c in range(3)]
    u = [[row[c] / (10 * mean[c]) for row in p + q] for c in range(3)]  # p(point | cluster)
    expected = 0.0
    for i in range(5):
        pair = sum(mean[c] * u[c][i] * u[c][5 + i] for c in range(3))
        expected -= math.log(100 * pair) / 5
    assert neighbor_loss(logits, neighbor_logits).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("balance", [0.0, 0.5, 2.0])
def test_neighbor_loss_divides_by_a_power_of_the_mean(balance: float) -> None:
    logits, neighbor_logits = torch.randn(2, 5, 3)
    p, q = logits.softmax(-1), neighbor_logits.softmax(-1)
    mean = torch.cat([p, q]).mean(0)
    expected = -sum((p[i] * q[i] / mean**balance).sum().log() for i in range(5)) / 5
    torch.testing.assert_close(neighbor_loss(logits, neighbor_logits, balance), expected)


@pytest.mark.parametrize("balance", [0.5, 1.0])
def test_a_weight_in_neighbor_loss_is_that_many_pairs(balance: float) -> None:
    logits, weights = torch.randn(2, 5, 3, requires_grad=True), torch.tensor([1, 4, 2, 1, 3])
    one = neighbor_loss(*logits, balance, weights.float())
    other = neighbor_loss(*logits.repeat_interleave(weights, 1), balance)
    torch.testing.assert_close(one, other)
    gradients = (torch.autograd.grad(loss, logits)[0] for loss in (one, other))
    torch.testing.assert_close(*gradients)


def test_parts_of_a_batch_with_the_mean_of_all_have_the_loss_of_all() -> None:
    logits = torch.randn(2, 6, 3)
    mean = logits.softmax(-1).mean((0, 1))
    parts = [neighbor_loss(*logits[:, part], mean=mean) for part in (slice(2), slice(2, 6))]
    torch.testing.assert_close((2 * parts[0] + 4 * parts[1]) / 6, neighbor_loss(*logits))


def test_autocast_rounds_no_cosine_and_no_count() -> None:
    network, points = NeuralClusters(4, 5, merge_at=2), torch.randn(600, 4)
    expected = network(points)
    joint = [network.joint.clone()]
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            assert network(points).equal(expected)
            twin = copy.deepcopy(network)
            twin.watch(points, expected, expected.roll(1, 0))
        joint.append(twin.joint)
    assert joint[1].equal(joint[2])
    assert not joint[0].equal(joint[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_cast_rounds_no_count(dtype: torch.dtype) -> None:
    network, points = NeuralClusters(4, 1, merge_at=2), torch.randn(3001, 4)
    network.sizes += 2049
    network = network.to(dtype)
    for _ in range(4):
        logits = network(points.to(dtype)).detach()
        network.watch(points.to(dtype), logits, logits)
    assert network.centroids.dtype == dtype
    assert network.joint.sum().item() == pytest.approx(2 * 2 * 3001, rel=1e-5)
    assert network.sizes.item() == 2049 + 2 * 3001


def test_the_temperature_rises_if_neighbours_disagree_and_falls_if_they_agree() -> None:
    network, points = NeuralClusters(4, 3), torch.randn(300, 4)
    logits = network(points)
    for neighbors, rises in ((logits, False), (logits[torch.randperm(300)], True)):
        loss = neighbor_loss(logits, neighbors)
        (gradient,) = torch.autograd.grad(loss, network.sharpness, retain_graph=True)
        assert (gradient > 0) == rises


def test_a_weight_is_that_many_pairs_where_clusters_are_counted() -> None:
    weights, points = torch.randint(1, 5, (40,)), torch.randn(40, 4)
    network = NeuralClusters(4, 3, merge_at=9)
    logits = network(points).detach()
    pairs, twin = (points, logits, logits.roll(1, 0)), copy.deepcopy(network)
    network.watch(*pairs, weights.float())
    twin.watch(*(x.repeat_interleave(weights, 0) for x in pairs))
    assert network.joint.any()
    torch.testing.assert_close(network.joint, twin.joint)
    torch.testing.assert_close(network.joint, network.joint.T)


def test_centroids_start_at_points_of_weight() -> None:
    network, points = NeuralClusters(4, 9), torch.randn(60, 4)
    weights = torch.where(torch.arange(60) < 12, 1.0, 1e-12)
    network.seed(points, torch.Generator().manual_seed(0), weights)
    start = (network.centroids @ network.embed(points).T).argmax(1)
    assert (start[1:] < 12).all()
    assert len(start.unique()) == 9


def test_a_cluster_without_points_is_given_some_of_the_largest() -> None:
    x = torch.randn(2000, 4)
    network = NeuralClusters(4, 5)
    network.seed(x, torch.Generator().manual_seed(0))
    with torch.no_grad():
        network.centroids[2] = -network.embed(x).mean(0)
        before = network(x)
    sizes = torch.bincount(before.argmax(1), minlength=5)
    assert sizes[2] == 0
    for _ in range(25):
        network.watch(x, before, before)
    after = network(x)
    assert 2 in after.argmax(1)
    assert before[after[:, 2].argmax()].argmax() == sizes.argmax()


@pytest.mark.parametrize(("third", "from_"), [(4, 0), (6, 2)])
def test_empty_clusters_are_given_different_points_and_halve_the_largest(
    third: int, from_: int
) -> None:
    x, network = torch.randn(500, 3), NeuralClusters(3, 4)
    similarity, cluster = network.similarities(x).max(1)
    similarity.detach_()
    network.revive(x, torch.tensor([10, 0, third, 0]))
    first = int(similarity.where(cluster == 0, torch.inf).argmin())
    similarity[first] = torch.inf
    second = int(similarity.where(cluster == from_, torch.inf).argmin())
    torch.testing.assert_close(network.centroids[[1, 3]], network.embed(x[[first, second]]))


def test_a_merged_centroid_is_the_mean_weighted_by_points() -> None:
    network = NeuralClusters(2, 1, merge_at=1, first=3)
    before, sizes = network.centroids.detach().clone(), torch.tensor([70, 25, 5])
    logits = 50 * torch.eye(3).repeat_interleave(sizes, 0)
    network.watch(torch.randn(100, 2), logits, logits)
    directions = torch.nn.functional.normalize(before, dim=1)
    expected = torch.nn.functional.normalize(sizes.float() @ directions, dim=0)
    torch.testing.assert_close(network.centroids[network.alive][0], expected)


def test_merging_joins_the_clusters_that_share_their_neighbors() -> None:
    network = NeuralClusters(2, 3, merge_at=1)  # begins with 9
    groups = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    share = (groups[:, None] == groups).float() / 3 + 1e-6
    point = torch.randint(9, (600,))
    before = network.centroids.detach().clone()
    logits = torch.eye(9)[point].clamp(min=1e-9).log()
    network.watch(torch.randn(600, 2), logits, share[point].log())
    assert network.alive.sum() == 3
    left = network.alive.nonzero()[:, 0]
    assert groups[left].tolist() == [0, 1, 2]
    expected = torch.nn.functional.normalize(before, dim=1)[:3].sum(0)
    cosine = torch.nn.functional.cosine_similarity(network.centroids[left[0]], expected, dim=0)
    assert cosine > 0.98  # a mean weighted by sizes that are nearly alike
    assert network(torch.randn(5, 2)).shape == (5, 3)


def test_partners_are_the_nearest_and_never_the_point_itself() -> None:
    x = torch.randn(1100, 3)
    lifted = torch.nn.functional.normalize(torch.cat([x, torch.ones(1100, 1)], 1), dim=1)
    cosines = (lifted @ lifted.T).fill_diagonal_(-2)
    assert nearest_neighbors(x, 4).equal(cosines.sort(1, descending=True).indices[:, :4])
    assert nearest_neighbors(x[:1], 4).tolist() == [[0]]
    assert nearest_neighbors(x[:3], 4).shape == (3, 2)


@pytest.mark.slow
def test_partners_of_many_points_are_found_by_inverted_lists() -> None:
    pytest.importorskip("faiss")
    x = torch.randn(EXACT + 1, 8)
    found, exact = nearest_neighbors(x, 5), nearest_neighbors(x.double()[:EXACT], 5)
    assert not (found == torch.arange(len(x))[:, None]).any()
    same = (found[:EXACT, :, None] == exact[:, None]).any(2).float().mean()
    assert same > 0.9
    alike = nearest_neighbors(torch.ones(EXACT + 1, 2), 3)
    assert alike.shape == (EXACT + 1, 3)
    assert alike.min() >= 0


def test_features_undo_any_rotation_and_scale() -> None:
    x = torch.randn(100, 3, dtype=torch.float64) * torch.tensor([3.0, 2.0, 1.0])
    rotation = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    one = PrincipalComponents(3, 3).learn(x)(x)
    other = PrincipalComponents(3, 3).learn(7 * x @ rotation + 5)(7 * x @ rotation + 5)
    torch.testing.assert_close(one.abs(), other.abs())
    assert one.square().sum(1).mean().item() == pytest.approx(1)


@pytest.mark.parametrize("columns", [3, 50])
def test_a_weight_is_that_many_points_in_principal_components(columns: int) -> None:
    x, weights = torch.randn(40, columns, dtype=torch.float64), torch.randint(1, 9, (40,))
    weighted = PrincipalComponents(columns, 3).learn(x, weights / weights.double().mean())
    copied = PrincipalComponents(columns, 3).learn(x.repeat_interleave(weights, 0))
    torch.testing.assert_close(weighted.center, copied.center)
    torch.testing.assert_close(weighted.projection.abs(), copied.projection.abs())
