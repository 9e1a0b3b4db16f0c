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
    with pytest.raises(
        InputError,
        match=r"no file .*images-idx3-ubyte.gz; `clusterformer prepare mnist` brings it; .*--root",
    ):
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
        ("t.csv", "1,2\n3\n", r"t.csv:2: 1 columns, the first line has 2"),
        ("t.csv", "1,2\n3,x\n", r"t.csv:2: column 2: 'x'; allowed are finite numbers"),
        ("t.csv", "a,b\n\n1,2\n\n3,\n", r"t.csv:5: column b: ''; allowed are finite numbers"),
        ("t.csv", "a,b\n1,nan\n", r"t.csv:2: column b: 'nan'; allowed are finite numbers"),
        ("t.csv", "1,2\n1,1e39\n", r"t.csv:2: column 2: '1e39'; allowed are finite numbers"),
        ("t.csv", "1,2\n1,1_0\n", r"t.csv:2: column 2: '1_0'; allowed are finite numbers"),
        ("t.csv", "a,1\n1,2\n", r"t.csv:1: column 1: 'a'; .* a header line of names alone"),
        ("t.csv", "a;b\n1;2\n", r"t.csv:2: column a;b: '1;2'; .* ';' separates no columns here"),
        ("t.tsv", "1,2\n1,2\n", r"t.tsv: empty|t.tsv:2: column 1,2: .* ',' separates no columns"),
        ("t.csv", '1,2\n"1,2\n', r"t.csv:2: not a table of numbers, UTF-8: unexpected end of data"),
        ("t.csv", "1,2\n1,\0\n", r"t.csv:2: "),
        ("t.csv", "a,b\n", r"t.csv: empty; a line for each point is needed"),
        ("t.csv", "", r"t.csv: empty"),
        ("t.csv.gz", "1,2\n", r"t.csv.gz: not a table of numbers, UTF-8: Not a gzipped file"),
        ("t.npz", "1,2\n", r"t.npz: not a NumPy archive"),
        ("t.npz.gz", "1,2\n", r"t.npz.gz: cannot tell its format"),
        ("t.npy", "nothing", r"t.npy: not a NumPy file"),
        ("t.xls", "1", r"t.xls: cannot tell its format"),
    ],
)
def test_bad_files_are_refused(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_points(str(tmp_path / name))


def test_a_line_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"a,b\n1,2\n3,\xe94\n")
    with pytest.raises(InputError, match=r"t.csv:3: bytes e9 34 0a are not utf-8"):
        read_points(str(tmp_path / "t.csv"))


@pytest.mark.parametrize("text", ["1,2\n3,4\n", "a,b\n1,2\n3,4\n"])
def test_a_byte_order_mark_hides_no_point(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text, encoding="utf-8-sig", newline="\r\n")
    points = read_points(str(tmp_path / "t.csv"))
    assert points.train.tolist() == [[1, 2], [3, 4]]
    assert points.columns == (["a", "b"] if "a" in text else None)


def test_columns_are_selected_by_name_and_number(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("key,a,kind,b\n" + "".join(f"k{i},{i},x,{-i}\n" for i in range(10)))
    points = read_points(str(table), label_column="kind", id_column="key")
    assert points.whole is not None
    assert points.whole[3].tolist() == [3, -3]
    assert (points.ids, points.columns) == ([f"k{i}" for i in range(10)], ["a", "b"])
    assert len(points.train) == 8
    points = read_points(str(table), id_column=1, columns=["b", 2])
    assert points.columns == ["b", "a"]
    assert points.train[3].tolist() == [-3, 3]
    for column, message in [("c", "first line has"), ("5", "there are 4"), ("0", "there are 4")]:
        with pytest.raises(InputError, match=rf"t.csv:1: no column '?{column}'?.*{message}"):
            read_points(str(table), columns=[column])
    table.write_text("2019,2020,x\n1,2,3\n")
    assert read_points(str(table), id_column="x").train.tolist() == [[1, 2]]
    table.write_text(",a,b\nu,1,2\nv,3,4\n")  # as pandas writes an index
    points = read_points(str(table))
    assert (points.ids, points.train.tolist()) == (["u", "v"], [[1, 2], [3, 4]])
    for text in ("0,1\n1,2\n3,4\n", ",0,1\n7,1,2\n9,3,4\n"):  # columns without names
        table.write_text(text)
        assert read_points(str(table)).train.tolist() == [[1, 2], [3, 4]]
    points = read_points(str(table), columns=["1", "0"], by_name=True)  # with an index
    assert (points.ids, points.train.tolist()) == (["7", "9"], [[2, 1], [4, 3]])
    assert read_points(str(table), columns=[3, 2]).ids == ["7", "9"]
    with pytest.raises(InputError, match=r"no column '2': the first line has"):
        read_points(str(table), columns=["2"], by_name=True)
    table.write_text("0.0,1.0\n3,4\n")
    assert read_points(str(table)).train.tolist() == [[0, 1], [3, 4]]
    np.save(tmp_path / "x.npy", np.arange(6.0).reshape(2, 3))
    assert read_points(str(tmp_path / "x.npy"), columns=["3", "1"]).train.tolist() == [
        [2, 0],
        [5, 3],
    ]


def test_packed_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6.0).reshape(2, 3))
    (tmp_path / "x.npy.gz").write_bytes(gzip.compress((tmp_path / "x.npy").read_bytes()))
    assert read_points(str(tmp_path / "x.npy.gz")).train.shape == (2, 3)
    (tmp_path / "x.npy.gz").write_bytes((tmp_path / "x.npy.gz").read_bytes()[:-12])
    with pytest.raises(InputError, match=r"x.npy.gz: not a NumPy file: Compressed file ended"):
        read_points(str(tmp_path / "x.npy.gz"))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": [[1, np.nan]]}, r"x\[0, 1\] is nan, allowed are finite numbers"),
        ({"x": [[1, 2]], "x_test": [[1, -np.inf]]}, r"x_test\[0, 1\] is -inf"),
        ({"x": [["a"]]}, r"x holds <U1, allowed are numbers"),
        ({"x": [[1j]]}, r"x holds complex128, allowed are numbers"),
        ({"x": np.zeros((0, 2))}, r"x has shape \(0, 2\), that is no numbers"),
        ({"x": [[1, 2]], "x_test": [[1]]}, "x has 2 columns, but x_test 1"),
        ({"x": [[1, 2]], "y": 3}, r"y has shape \(\), allowed is \(points,\)"),
        ({"x": [[1, 2]], "y": [[1, 2]]}, r"y has shape \(1, 2\), allowed is \(points,\)"),
        ({"x": [[1, 2]], "y": [1j]}, "y holds complex128, allowed are numbers or strings"),
        ({"x": [[1, 2]], "y": [1]}, "1 labelled points; at least 5 are needed"),
        ({"x": [[1, 2]], "y_test": [1]}, "0 x_test, but 1 y_test"),
        ({"x": [[1]] * 5, "y": [1] * 5, "x_test": [[2]]}, "x_test and y, but no y_test"),
        ({"x": [[1]] * 5, "x_test": [[2]], "y_test": [1]}, "x_test and y_test, but no y;"),
    ],
)
def test_arrays_that_do_not_fit_are_named(arrays: dict, message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(InputError, match=message):
        read_points(str(tmp_path / "x.npz"))


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


def test_an_encoder_is_for_texts() -> None:
    with pytest.raises(InputError, match=r"--encoder is for 20news .* got --data digits"):
        read_points("digits", encoder="all-MiniLM-L6-v2")


def test_objects_are_told_with_their_array(tmp_path: Path) -> None:
    objects, path = np.array([[1.0, None]] * 4), tmp_path / "a.npy"
    np.save(path, objects)
    (tmp_path / "a.npy.gz").write_bytes(gzip.compress(path.read_bytes()))
    np.savez(tmp_path / "x.npz", x=objects)
    np.savez(tmp_path / "y.npz", x=np.zeros((4, 2)), y=objects[:, 0])
    for name in ("a.npy", "a.npy.gz", "x.npz"):
        message = rf"{name}: x holds Python objects, allowed are numbers: save x.astype\(float\)$"
        with pytest.raises(InputError, match=message):
            read_points(str(tmp_path / name))
    message = r"y holds Python objects, allowed are strings: save y.astype\(str\)$"
    with pytest.raises(InputError, match=message):
        read_points(str(tmp_path / "y.npz"))
