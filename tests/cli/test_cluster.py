"""`clusterformer cluster` compares methods and leaves results and pictures."""

import csv
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

import clusterformer
from clusterformer.cli.main import main
from clusterformer.errors import InputError

pytest.importorskip("sklearn")
pytest.importorskip("minisom")
pytest.importorskip("matplotlib")

from clusterformer.clustering import NeuralClustering


@pytest.fixture
def points(tmp_path: Path) -> Path:
    y = np.arange(150) % 3
    x = np.eye(3)[y] * 4 + 0.3 * np.random.default_rng(0).standard_normal((150, 3))
    np.savez(tmp_path / "points.npz", x=x, y=y)
    return tmp_path / "points.npz"


def test_fewer_different_points_than_clusters_are_counted_in_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    np.save(tmp_path / "x.npy", np.repeat(np.eye(3), 10, axis=0))
    arguments = ["cluster", "--data", str(tmp_path / "x.npy"), "--n_clusters", "5"]
    methods = ["--methods", "neural", "kmeans", "--no-pictures"]
    assert main([*arguments, *methods, "--runs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()[2:4]
    assert [line.split()[:3] for line in lines] == [["5", m, "3.0"] for m in methods[1:3]]
    assert not recwarn.list


def test_the_command_that_labels_other_points_can_be_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, runs = tmp_path / "my table.csv", tmp_path / "my runs"
    table.write_text("my name,a,b\n" + "".join(f"p{i},{i % 2},{i % 3}\n" for i in range(30)))
    arguments = ["cluster", "--data", str(table), "--id_column", "my name", "--runs", str(runs)]
    options = ["--methods", "neural", "--n_clusters", "2", "--no-pictures"]
    assert main([*arguments, *options]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    _, *words = shlex.split(last.removeprefix("label other points: ").replace("FILE", "{}"))
    words[words.index("{}")] = str(table)
    assert main([*words, "--runs", str(runs)]) == 0


@pytest.mark.slow
def test_every_method_every_seed_every_measure(
    points: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = ["neural", "neural-hidden", "kmeans", "minibatch-kmeans", "som"]
    arguments = ["cluster", "--data", str(points), "--n_clusters", "3", "--seeds", "2"]
    arguments += ["--methods", *methods, "--hidden", "16", "--map", "pca"]
    assert main([*arguments, "--runs", str(tmp_path)]) == 0
    folder = tmp_path / "cluster-points/1"
    with (folder / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["seed"]) for row in rows] == [
        (method, seed) for method in methods for seed in "01"
    ]
    neural = [float(row["accuracy"]) for row in rows if row["method"].startswith("neural")]
    assert min(neural) > 0.95
    assert all(float(row["seconds"]) > 0 for row in rows)
    report = json.loads((folder / "results.json").read_text())
    assert report["command"].startswith("clusterformer cluster --data")
    assert len(report["rows"]) == len(rows)
    drawn = {path.name for path in (folder / "pictures").iterdir()}
    assert drawn == {"map-3.png", "sizes-3.png"}
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {
        "pictures",
        *(f"{method}-3" for method in methods),
    }
    assert "neural-hidden" in capsys.readouterr().out


def test_auto_finds_the_number_of_clusters_of_a_file(
    points: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["cluster", "--data", str(points), "--n_clusters", "auto", "--no-pictures"]
    assert main([*arguments, "--runs", str(tmp_path)]) == 0
    folder = tmp_path / "cluster-points/1"
    [row] = json.loads((folder / "results.json").read_text())["rows"]
    assert (row["method"], row["n_clusters"], row["clusters"]) == ("neural", "auto", 3)
    assert row["ari"] > 0.85
    assert NeuralClustering.load(folder / "neural-auto/model.npz").n_clusters_ == 3
    assert "auto  neural" in capsys.readouterr().out
    arguments = ["cluster", "--predict", str(folder), "--data", str(points)]
    assert main([*arguments, "--runs", str(tmp_path / "again")]) == 0
    assert "150 points, 3 clusters\n" in capsys.readouterr().out


def test_numbers_stand_below_their_names_where_one_cluster_has_no_silhouette(
    points: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["cluster", "--data", str(points), "--n_clusters", "1", "3", "--no-pictures"]
    assert main([*arguments, "--methods", "kmeans", "--runs", str(tmp_path)]) == 0
    table = capsys.readouterr().out.splitlines()[1:4]
    heads, one, three = ([line[25:][i : i + 15] for i in range(0, 150, 15)] for line in table)
    column = [head.strip() for head in heads].index("silhouette")
    assert one[column].strip() == "-"
    assert float(three[column]) > 0.5
    assert len({len(line) for line in table}) == 1


def test_equal_points_are_drawn(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.full((40, 3), 0.1))
    arguments = ["cluster", "--data", str(tmp_path / "x.npy"), "--n_clusters", "1"]
    assert main([*arguments, "--methods", "kmeans", "--runs", str(tmp_path)]) == 0
    assert (tmp_path / "cluster-x/1/pictures/map-1.png").is_file()


@pytest.mark.slow
def test_umap_and_hdbscan_find_what_is_apart(
    points: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("umap")
    arguments = ["cluster", "--data", str(points), "--n_clusters", "3", "auto", "--map", "pca"]
    assert main([*arguments, "--methods", "umap-hdbscan", "--runs", str(tmp_path)]) == 0
    assert (tmp_path / "cluster-points/1/pictures/map-auto.png").is_file()
    rows = json.loads((tmp_path / "cluster-points/1/results.json").read_text())["rows"]
    assert [row["clusters"] for row in rows] == [3, 3]
    assert min(row["ari"] for row in rows) > 0.95


def test_the_answer_is_written_and_its_model_labels_other_points(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    kinds = np.arange(60) % 3
    x = np.eye(3)[kinds] * 4 + 0.3 * rng.standard_normal((60, 3))
    lines = [f"p{i},{a},{b},{c},{'xyz'[i % 3]}" for i, (a, b, c) in enumerate(x)]
    (tmp_path / "old.csv").write_text("name,a,b,c,kind\n" + "\n".join(lines))
    lines = [f"{c},q{i},{b},{a}" for i, (a, b, c) in enumerate(x[:9])]
    (tmp_path / "new.csv").write_text("c,name,b,a\n" + "\n".join(lines))
    common = ["--id_column", "name", "--runs", str(tmp_path / "runs")]
    arguments = ["cluster", "--data", str(tmp_path / "old.csv"), "--label_column", "kind"]
    arguments += ["--methods", "neural", "kmeans", "--n_clusters", "3", "--no-pictures"]
    assert main([*arguments, *common]) == 0
    folder = tmp_path / "runs/cluster-old/1"
    assert {path.name for path in (folder / "kmeans-3").iterdir()} == {"labels.csv", "centers.npy"}
    assert f"cluster --data FILE --predict {folder}/neural-3" in capsys.readouterr().out

    with (folder / "neural-3/labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [f"p{i}" for i in range(60)]  # those that test too
    clusters = np.array([int(row["cluster"]) for row in rows])
    assert len({*zip(kinds, clusters, strict=True)}) == 3
    memberships = np.load(folder / "neural-3/memberships.npy")
    assert memberships.shape == (60, 3)
    assert (memberships.argmax(1) == clusters).all()
    found = [float(row["probability"]) for row in rows]
    np.testing.assert_allclose(found, memberships.max(1), atol=1e-6)
    model = NeuralClustering.load(folder / "neural-3/model.npz")
    assert list(model.feature_names_in_) == ["a", "b", "c"]

    arguments = ["cluster", "--data", str(tmp_path / "new.csv"), *common]
    assert main([*arguments, "--predict", str(folder)]) == 0  # columns by their names
    with (tmp_path / "runs/cluster-new/1/labels.csv").open() as file:
        again = list(csv.DictReader(file))
    assert [row["id"] for row in again] == [f"q{i}" for i in range(9)]
    assert [int(row["cluster"]) for row in again] == clusters[:9].tolist()
    rows = [f"{i},{a},{b},{c}" for i, (a, b, c) in enumerate(x, 7)]  # as pandas writes them
    (tmp_path / "bare.csv").write_text(",0,1,2\n" + "\n".join(rows))
    arguments = ["cluster", "--data", str(tmp_path / "bare.csv"), "--runs", str(tmp_path / "runs")]
    assert main([*arguments, "--methods", "neural", "--n_clusters", "3", "--no-pictures"]) == 0
    assert main([*arguments, "--predict", str(tmp_path / "runs/cluster-bare/1")]) == 0
    for number in ("1/neural-3", "2"):
        with (tmp_path / "runs/cluster-bare" / number / "labels.csv").open() as file:
            found = [(row["id"], int(row["cluster"])) for row in csv.DictReader(file)]
        assert [name for name, _ in found] == list(map(str, range(7, 67)))
        assert len({*zip(kinds, (cluster for _, cluster in found), strict=True)}) == 3
    np.save(tmp_path / "two.npy", np.zeros((5, 2)))
    arguments = ["cluster", "--data", str(tmp_path / "two.npy"), "--runs", str(tmp_path / "none")]
    assert main([*arguments, "--predict", str(folder)]) == 2
    assert "2 columns, " in capsys.readouterr().err
    assert main([*arguments, "--predict", str(tmp_path)]) == 2
    assert "no model.npz in it" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_pictures_are_augmented(tmp_path: Path) -> None:
    arguments = ["cluster", "--methods", "neural-augmented", "--n_clusters", "10", "--no-pictures"]
    assert main([*arguments, "--runs", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "cluster-digits/1/results.json").read_text())
    assert report["rows"][0]["accuracy"] > 0.8


def test_wandb_obeys_its_own_mode(
    points: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    arguments = ["cluster", "--data", str(points), "--n_clusters", "3", "--methods", "kmeans"]
    assert main([*arguments, "--no-pictures", "--wandb", "--runs", str(tmp_path)]) == 0
    left = {path.name for path in (tmp_path / "cluster-points/1").iterdir()}
    assert left == {"results.csv", "results.json", "kmeans-3"}


def test_options_reach_the_neural_methods(points: Path, tmp_path: Path) -> None:
    options = ["--n_components", "2", "--n_neighbors", "4", "--n_clusters", "3", "--no-pictures"]
    arguments = ["cluster", "--data", str(points), "--methods", "neural", *options]
    assert main([*arguments, "--runs", str(tmp_path)]) == 0
    model = NeuralClustering.load(tmp_path / "cluster-points/1/neural-3/model.npz")
    assert (model.n_components, model.n_neighbors) == (2, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n_clusters", "0"], "--n_clusters: allowed is auto, or a number from 1; got '0'"),
        (["--n_clusters", "auto", "--methods", "kmeans"], "kmeans needs a number of clusters"),
        (["--n_clusters", "1000"], "1000 is more than the 120 points"),
        (["--methods", "dbscan"], "invalid choice: 'dbscan'"),
        (["--data", "none.npy"], "none.npy: no such file"),
        (["--methods", "neural-augmented"], "neural-augmented needs pictures"),
        (["--what"], "no option --what; --help lists all"),
        (["--balance", "nan"], "--balance must be finite, got nan"),
        (["--hidden", "9" * 12, "--methods", "neural-hidden"], "'hidden' parameter"),
        (["--n_clusters", "9" * 30], "is more than the 120 points"),
        (["--seeds", "9" * 12], "--seeds must be at most 1000"),
        (["--threads", "9" * 12], "--threads must be at most 1024"),
        (["--columns", "9"], "no column 9, there are 3"),
        (["--id_column", "name"], "id_column is for tables"),
        (["--predict", "none"], "none: no such file"),
        (["--predict", "none", "--no-merge"], "merge is for new clusters, not for those of --pre"),
        (["--predict", "none", "--n_clusters", "7"], "n_clusters is for new clusters"),
    ],
)
def test_bad_options_are_one_line(
    arguments: list[str], message: str, points: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = ["--runs", str(points.parent / "runs")]
    assert main(["cluster", "--data", str(points), *runs, *arguments]) == 2
    assert not (points.parent / "runs").exists()
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_few_points_need_a_number_of_clusters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "few.npy", np.eye(4, dtype=np.float32))
    few = ["cluster", "--data", str(tmp_path / "few.npy"), "--runs", str(tmp_path / "runs")]
    assert main(few) == 2
    assert "few.npy: 4 points; choose --n_clusters, at most 4" in capsys.readouterr().err


def test_nan_is_named_and_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.full((20, 2), np.nan))
    arguments = ["cluster", "--data", str(tmp_path / "x.npy"), "--n_clusters", "2"]
    assert main([*arguments, "--runs", str(tmp_path / "runs")]) == 2
    assert capsys.readouterr().err.endswith("x[0, 0] is nan, allowed are finite numbers\n")
    assert not (tmp_path / "runs").exists()


def test_values_whose_squares_overflow_are_refused_and_others_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(0).standard_normal((40, 2))
    arguments = ["cluster", "--data", str(tmp_path / "x.npy"), "--n_clusters", "2"]
    arguments += ["--methods", "kmeans", "--runs", str(tmp_path / "runs")]
    np.save(tmp_path / "x.npy", (x * 1e20).astype(np.float32))
    assert main(arguments) == 2
    assert "allowed are those whose squares fit into float32" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    np.save(tmp_path / "x.npy", x * 1e150)
    assert main([*arguments, "--map", "pca"]) == 0
    assert (tmp_path / "runs/cluster-x/1/pictures/map-2.png").exists()


def test_fit_without_its_data_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["fit", "--pictures=false", "--config", "mnist.yaml", "--data.root", str(tmp_path)]
    assert main([*arguments, "--runs", str(tmp_path / "runs")]) == 2
    assert "`clusterformer prepare mnist` brings it" in capsys.readouterr().err
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_a_run_is_loaded_as_any_other(
    dtype: type, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    x = (np.eye(3)[np.arange(60) % 3] * 4 + 0.3 * rng.standard_normal((60, 3))).astype(dtype)
    np.save(tmp_path / "points.npy", x)
    command = ["cluster", "--data", str(tmp_path / "points.npy"), "--n_clusters", "3"]
    command += ["--methods", "neural", "kmeans", "--no-pictures", "--runs", str(tmp_path)]
    assert main(command) == 0
    run = tmp_path / "cluster-points" / "1"
    with (run / "neural-3" / "labels.csv").open() as file:
        written = list(csv.DictReader(file))
    for path in (run, run / "neural-3", run / "neural-3" / "model.npz"):
        found = clusterformer.load(path, device="cpu").predict(x)
        assert [record["cluster"] for record in found] == [int(row["cluster"]) for row in written]
        probability = [float(row["probability"]) for row in written]
        assert [record["membership"] for record in found] == pytest.approx(probability, abs=1e-4)
        assert main(["predict", "--checkpoint", str(path)]) == 2
        assert f"`clusterformer cluster --data FILE --predict {path}`" in capsys.readouterr().err
    assert isinstance(clusterformer.load(run).network, torch.nn.Module)
    with pytest.raises(InputError, match=r"kmeans-3: no model\.npz in it"):
        clusterformer.load(run / "kmeans-3")


def test_noise_is_noise_in_a_loaded_model_too(points: Path, tmp_path: Path) -> None:
    x = np.load(points)["x"]
    fitted = NeuralClustering(3, max_iter=30, random_state=0)
    fitted.min_probability = float(np.median(fitted.fit(x).predict_proba(x).max(1)))
    fitted.save(tmp_path / "model.npz")
    found = clusterformer.load(tmp_path / "model.npz", device="cpu").predict(x)
    clusters = [record["cluster"] for record in found]
    assert clusters == fitted.predict(x).tolist()
    assert 0 < clusters.count(-1) < len(x)


def test_tables_of_a_run_are_whole_or_not_there(
    points: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["cluster", "--data", str(points), "--n_clusters", "3", "--no-pictures"]
    command += ["--methods", "kmeans", "minibatch-kmeans", "--runs", str(tmp_path)]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(csv.DictWriter, "writerows", full)
    assert main(command) == 2
    run = tmp_path / "cluster-points" / "1"
    assert not list(run.glob("results*"))
