"""A saved NeuralClustering predicts the same; no other file is taken for one."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError

from clusterformer.clustering import NeuralClustering
from clusterformer.errors import InputError


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return make_blobs(120, n_features=3, centers=3, cluster_std=0.5, random_state=0)[0]


@pytest.fixture(scope="module")
def saved(x: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model.npz"
    NeuralClustering(3, hidden=8, max_iter=20, random_state=0).fit(x).save(path)
    return path


@pytest.mark.parametrize(
    "options", [{}, {"hidden": 8}, {"merge": False}, {"merge": "information"}, {"n_components": 2}]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_loaded_model_is_the_saved_one(
    options: dict, dtype: type, x: np.ndarray, tmp_path: Path
) -> None:
    x = x.astype(dtype)
    fitted = NeuralClustering(np.int64(3), max_iter=20, random_state=0, **options).fit(x)
    fitted.save(tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    loaded = NeuralClustering.load(tmp_path / "m")
    assert loaded.get_params() == fitted.get_params()
    np.testing.assert_array_equal(loaded.predict_proba(x), fitted.predict_proba(x))
    for name in ("labels_", "cluster_centers_", "n_iter_", "n_features_in_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(fitted, name))
    assert loaded.score(x) == fitted.score(x)
    loaded.partial_fit(x)
    loaded.save(tmp_path / "m")  # over the old one


def test_functions_are_left_out_and_names_kept(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    x = pandas.DataFrame(make_blobs(60, random_state=0)[0], columns=["a", "b"])
    random = np.random.RandomState(0)
    fitted = NeuralClustering(3, max_iter=5, augment=lambda p: p, random_state=random).fit(x)
    fitted.save(tmp_path / "m")
    loaded = NeuralClustering.load(tmp_path / "m")
    assert (loaded.augment, loaded.random_state) == (None, None)
    assert list(loaded.feature_names_in_) == ["a", "b"]
    np.testing.assert_array_equal(loaded.predict(x), fitted.predict(x))


def test_an_unfitted_one_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        NeuralClustering().save(tmp_path / "m")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_clusters": 7}, "3 centers, but n_clusters is 7"),
        ({"hidden": 32}, "None units, but hidden is 32"),
        ({"tol": -1}, "'tol' parameter"),
    ],
)
def test_what_could_not_be_loaded_is_neither_trained_nor_saved(
    parameters: dict, message: str, x: np.ndarray, tmp_path: Path
) -> None:
    fitted = NeuralClustering(3, max_iter=5, random_state=0).partial_fit(x)
    fitted.set_params(**parameters)
    with pytest.raises(ValueError, match=message):
        fitted.partial_fit(x)
    with pytest.raises(ValueError, match=message):
        fitted.save(tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_a_flipped_bit_is_noticed(saved: Path, tmp_path: Path) -> None:
    content = bytearray(saved.read_bytes())
    entry = zipfile.ZipFile(saved).getinfo("_network.centroids.npy")
    content[entry.header_offset + 400] ^= 1
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(InputError, match="Bad CRC-32"):
        NeuralClustering.load(tmp_path / "m")


def changed(saved: Path, path: Path, **arrays: object) -> Path:
    with np.load(saved) as file:
        found = {name: file[name] for name in file.files}
    described = json.loads(str(found["json"])) | arrays.pop("described", {})  # type: ignore[operator]
    described["parameters"] |= arrays.pop("parameters", {})
    found["json"] = np.array(json.dumps(described))
    found |= arrays  # type: ignore[arg-type]
    with path.open("wb") as file:
        np.savez(file, **{name: array for name, array in found.items() if array is not None})
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_network.centroids": np.full((9, 64), np.nan)}, "NaN or infinity in _network.centroids"),
        ({"_network.centroids": None}, "Missing key"),
        ({"_network.centroids": np.zeros((9, 63))}, "size mismatch"),
        ({"_network.alive": np.ones(9, bool)}, "9 clusters, allowed are 3"),
        ({"cluster_centers_": np.zeros(3)}, "not enough values to unpack"),
        ({"cluster_centers_": np.zeros((10**6, 3))}, "1000000 centers, but n_clusters is 3"),
        ({"labels_": None}, "labels_"),
        ({"labels_": np.array(["a"])}, "not a model of NeuralClustering.save"),
        ({"parameters": {"hidden": 2**20}}, "8 units, but hidden is 1048576"),
        ({"parameters": {"n_clusters": -1}}, "'n_clusters' parameter"),
        ({"parameters": {"what": 1}}, "unexpected keyword argument 'what'"),
        ({"described": {"format": "other"}}, "format 'other', allowed is 'NeuralClustering 1'"),
        ({"described": {"merge_at": None}}, "not a model of NeuralClustering.save"),
    ],
)
def test_what_does_not_fit_is_one_line(
    change: dict, message: str, saved: Path, tmp_path: Path
) -> None:
    path = changed(saved, tmp_path / "m", **change)
    with pytest.raises(InputError, match=message) as error:
        NeuralClustering.load(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.array([{}], dtype=object), json=np.array([{}], dtype=object))
    for content in (b"", b"what", b"PK\x03\x04", buffer.getvalue()):
        (tmp_path / "m").write_bytes(content)
        with pytest.raises(InputError, match=r"not a model of NeuralClustering\.save"):
            NeuralClustering.load(tmp_path / "m")
    for content in (b"", b'{"text": "what"}\n'):
        (tmp_path / "m").write_bytes(content)
        with pytest.raises(InputError, match=r"m: not a model of NeuralClustering\.save$"):
            NeuralClustering.load(tmp_path / "m")
    np.savez(tmp_path / "points.npz", x=np.ones(3), y=np.ones(3))
    with pytest.raises(InputError, match=r"not a model of NeuralClustering\.save: it holds x, y$"):
        NeuralClustering.load(tmp_path / "points.npz")
    with pytest.raises(InputError, match="no such file"):
        NeuralClustering.load(tmp_path / "none")


def test_a_device_that_is_not_there_is_refused_when_a_model_is_loaded(saved: Path) -> None:
    with pytest.raises(ValueError, match=r"'device' parameter .* must be 'cpu', 'cuda' or"):
        NeuralClustering.load(saved, device="what")


def test_a_missing_directory_is_named(x: np.ndarray, saved: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no such directory to write to: .*none'"):
        NeuralClustering.load(saved).save(tmp_path / "none" / "m")


def test_a_full_disk_keeps_the_old_model(x: np.ndarray, saved: Path, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    signal = pytest.importorskip("signal")
    path = tmp_path / "m"
    path.write_bytes(saved.read_bytes())
    fitted = NeuralClustering.load(path).partial_fit(x)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            fitted.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == saved.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
