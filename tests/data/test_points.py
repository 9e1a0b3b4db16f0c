"""Points to cluster are read whole, or refused with file, line and what is allowed."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from clusterformer.data.points import read_points
from clusterformer.errors import InputError


def idx(values: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes() + values.tobytes()
    )


def write_mnist(folder: Path) -> Path:
    (folder / "mnist").mkdir()
    rng = np.random.default_rng(0)
    for prefix, count in (("train", 60_000), ("t10k", 10_000)):
        images = np.zeros((count, 28, 28), np.uint8)
        images[:, 3, 4] = rng.integers(256, size=count)
        labels = rng.integers(10, size=count).astype(np.uint8)
        (folder / f"mnist/{prefix}-images-idx3-ubyte").write_bytes(idx(images))
        packed = gzip.compress(idx(labels), 1)
        (folder / f"mnist/{prefix}-labels-idx1-ubyte.gz").write_bytes(packed)
    return folder


def test_mnist_is_read_packed_or_not(tmp_path: Path) -> None:
    points = read_points("mnist", root=write_mnist(tmp_path))
    assert points.train.shape == (60_000, 784)
    assert points.test.shape == (10_000, 784)
    assert points.train[:, 3 * 28 + 4].max() == 1
    assert points.image == (28, 28)
    assert points.train_labels is not None
    assert set(points.train_labels.tolist()) == set(range(10))


def test_mnist_missing_or_cut_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"images-idx3-ubyte.gz: No such file.*--root"):
        read_points("mnist", root=tmp_path)
    path = write_mnist(tmp_path) / "mnist/train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"expected an IDX file of \(60000, 28, 28\) bytes"):
        read_points("mnist", root=tmp_path)


def test_digits_need_no_file() -> None:
    pytest.importorskip("sklearn")
    points = read_points("digits")
    assert len(points.train) + len(points.test) == 1797
    assert points.test_labels is not None
    assert len(points.test_labels) == len(points.test) == 359


def test_arrays(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((10, 3))
    np.save(tmp_path / "x.npy", x)
    np.testing.assert_array_equal(read_points(str(tmp_path / "x.npy")).train, x)
    np.savez(tmp_path / "xy.npz", x=x, y=np.arange(10) % 2)
    points = read_points(str(tmp_path / "xy.npz"))
    assert (len(points.train), len(points.test)) == (8, 2)
    np.savez(tmp_path / "all.npz", x=x, y=np.arange(10), x_test=x[:4], y_test=np.arange(4))
    assert len(read_points(str(tmp_path / "all.npz")).test) == 4


def test_tables_with_and_without_header(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("a,b,kind\n" + "1,2,x\n3,4.5,y\n" * 5)
    points = read_points(str(table), label_column="kind")
    assert points.train.shape == (8, 2)
    assert points.train_labels is not None
    assert set(points.train_labels.tolist()) == {"x", "y"}
    table.write_text("1,2\n3,4\n")
    assert read_points(str(table)).train.tolist() == [[1, 2], [3, 4]]


def test_word_vectors(tmp_path: Path) -> None:
    vectors = tmp_path / "v.txt"
    vectors.write_text("cat 1 2 3\ndog 4 5 6\n")
    assert read_points(str(vectors)).train.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "1,2\n3\n", r"t.csv:2: 1 columns, line 1 has 2"),
        ("t.csv", "1,2\n3,x\n", r"t.csv:2: could not convert .* 'x'; allowed are numbers"),
        ("t.csv", "", r"t.csv: empty"),
        ("t.npy", "nothing", r"t.npy: not a NumPy file"),
        ("t.xls", "1", r"t.xls: cannot tell its format"),
    ],
)
def test_bad_files_are_refused(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_points(str(tmp_path / name))


def test_bad_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(InputError, match=r"x has shape \(3,\), allowed is \(points, columns\)"):
        read_points(str(tmp_path / "x.npy"))
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 2)), y=np.zeros(2))
    with pytest.raises(InputError, match="3 x, but 2 y"):
        read_points(str(tmp_path / "x.npz"))
    np.savez(tmp_path / "z.npz", z=np.zeros((3, 2)))
    with pytest.raises(InputError, match="no array x in it, there is z"):
        read_points(str(tmp_path / "z.npz"))
    with pytest.raises(InputError, match="no such file, and no named set; those are mnist, digits"):
        read_points("minst")
