"""`clusterformer cluster` compares methods and leaves results and pictures."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from clusterformer.cli.main import main

pytest.importorskip("sklearn")
pytest.importorskip("minisom")
pytest.importorskip("matplotlib")


@pytest.fixture
def points(tmp_path: Path) -> Path:
    y = np.arange(150) % 3
    x = np.eye(3)[y] * 4 + 0.3 * np.random.default_rng(0).standard_normal((150, 3))
    np.savez(tmp_path / "points.npz", x=x, y=y)
    return tmp_path / "points.npz"


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
    assert "neural-hidden" in capsys.readouterr().out


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
    assert left == {"results.csv", "results.json"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n_clusters", "0"], "--n_clusters must be at least 1, got 0"),
        (["--n_clusters", "1000"], "1000 is more than the 120 points"),
        (["--methods", "dbscan"], "invalid choice: 'dbscan'"),
        (["--data", "none.npy"], "none.npy: no such file"),
        (["--methods", "neural-augmented"], "neural-augmented is for pictures"),
        (["--what"], "unrecognized arguments: --what"),
    ],
)
def test_bad_options_are_one_line(
    arguments: list[str], message: str, points: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "--data", str(points), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_nan_is_named_and_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.full((20, 2), np.nan))
    arguments = ["cluster", "--data", str(tmp_path / "x.npy"), "--n_clusters", "2"]
    assert main([*arguments, "--runs", str(tmp_path / "runs")]) == 2
    assert capsys.readouterr().err.endswith("x.npy: Input X contains NaN.\n")
    assert not list((tmp_path / "runs").iterdir())


def test_fit_without_its_data_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["fit", "--config", "mnist.yaml", "--data.root", str(tmp_path)]
    assert main([*arguments, "--runs", str(tmp_path / "runs")]) == 2
    assert "No such file" in capsys.readouterr().err
    assert not list((tmp_path / "runs").iterdir())
