"""A trained model is measured with another mechanism that has no weights of its own."""

import json
from pathlib import Path
from typing import Any

import pytest

from clusterformer.cli.main import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of texts with full attention."""
    folder = tmp_path_factory.mktemp("full")
    lines = (f"{n % 2}\tword {n % 7} and {'good' if n % 2 else 'bad'}\n" for n in range(64))
    (file := folder / "texts.tsv").write_text("label\ttext\n" + "".join(lines))
    own = [f"--data.{part}={file}" for part in ("train", "valid", "test")]
    command = [
        "fit", "--data=Classification", *own, "--model.attention=FullAttention",
        "--model.d_model=16", "--model.num_heads=2", "--model.num_layers=2",
        "--trainer.max_steps=8", "--trainer.accelerator=cpu", "--pictures=false",
        "--baselines=false", f"--runs={folder / 'runs'}",
    ]  # fmt: skip
    assert main(command) == 0
    (found,) = (folder / "runs").glob("*/1")
    return found


def measured(run: Path, out: Path, *options: str) -> dict[str, Any]:
    assert main(["test", f"--checkpoint={run}", f"--out={out}", *options]) == 0
    results: dict[str, Any] = json.loads(out.read_text())["results"]
    return results


def test_an_approximation_has_the_weights_of_full_attention(run: Path, tmp_path: Path) -> None:
    own = measured(run, tmp_path / "own.json")
    multipole = "--model.attention=MultipoleAttention"
    options = [f"--model.attention.{option}" for option in ("num_clusters=64", "iterations=3")]
    near = measured(run, tmp_path / "near.json", multipole, *options)  # a cluster for each key
    far = measured(run, tmp_path / "far.json", multipole, "--model.attention.num_clusters=1")
    assert near["test/loss"] == pytest.approx(own["test/loss"], abs=1e-5)
    assert abs(far["test/loss"] - own["test/loss"]) > 1e-4
    # hash planes, drawn from a seed, are not in the checkpoint either
    improved = ["--model.attention=ImprovedClusteredAttention", "--model.attention.top_k=64"]
    exact = measured(run, tmp_path / "exact.json", *improved)
    assert exact["test/loss"] == pytest.approx(own["test/loss"], abs=1e-5)


def test_a_file_that_is_there_is_not_replaced_silently(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "own.json"
    for told in (False, True):
        measured(run, out)
        assert (f"--out: {out} is there, and will be replaced\n" in capsys.readouterr().err) == told


def test_a_mechanism_with_weights_of_its_own_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["test", f"--checkpoint={run}", "--model.attention=RoutingAttention"]) == 2
    error = capsys.readouterr().err
    assert "its weights do not fit the model: Missing key(s)" in error
    assert "offset" not in error
