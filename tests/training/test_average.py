"""Kept checkpoints, and the mean of their weights."""

import csv
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from clusterformer.cli.main import main
from clusterformer.errors import InputError
from clusterformer.training.checkpoint_callbacks import KeptCheckpoints
from clusterformer.training.checkpoints import CheckpointFiles, Kept, average, read

TOY = ["fit", "--pictures=false", "--data=toy_task.Toy", "--model.d_model=8", "--model.num_heads=2"]
TOY += ["--model.num_layers=1", "--trainer.accelerator=cpu", "--trainer.max_epochs=5"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    assert main([*TOY, f"--runs={runs}", "--keep=2"]) == 0
    return runs / "toy" / "1"


def measured(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    capsys.readouterr()
    assert main(arguments) == 0
    lines = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    return {name: float(value) for name, value in lines}


def test_the_last_and_the_best_are_kept(run: Path) -> None:
    kept = Kept.all(run / "checkpoints")
    assert 2 <= len(kept) <= 4
    assert [one.step for one in Kept.last(kept, 2)] == [20, 25]  # 5 batches an epoch
    best = read(run / "checkpoints" / "best.ckpt")
    step = Kept.best(kept, 1, "max")[0].step
    assert step == best["global_step"]
    assert "optimizer_states" not in read(kept[0].path)


def test_a_resumed_run_goes_on_keeping(run: Path) -> None:
    assert main(["fit", f"--resume={run}", "--trainer.max_epochs=6"]) == 0
    kept = Kept.all(run / "checkpoints")
    assert [one.step for one in Kept.last(kept, 2)] == [25, 30]
    assert 20 not in {one.step for one in set(kept) - set(Kept.best(kept, 2, "max"))}


@pytest.mark.parametrize("score", ["0.5", "-12", "1e-05", "-2.5e+30", "nan", "inf", "-inf"])
def test_a_file_that_is_named_otherwise_is_not_one_of_those_kept(
    score: str, tmp_path: Path
) -> None:
    for stem in (f"step10_{score}", f"step10_{score}-old", "step10_", "step10_mine"):
        (tmp_path / f"{stem}.ckpt").touch()
    assert [one.path.stem for one in Kept.all(tmp_path)] == [f"step10_{score}"]


def test_what_is_best_depends_on_the_mode_and_is_never_nan() -> None:
    nan = float("nan")
    kept = [Kept(step, score, Path()) for step, score in enumerate([nan, 3.0, 1.0, nan, 2.0])]
    assert [one.step for one in Kept.best(kept, 2, "max")] == [1, 4]
    assert [one.step for one in Kept.best(kept, 2, "min")] == [2, 4]
    assert [one.step for one in Kept.best(kept, 3, "min")] == [1, 2, 4]  # in training's order


def test_the_average_is_the_mean_of_the_weights(run: Path) -> None:
    paths = [one.path for one in Kept.all(run / "checkpoints")]
    weights = [read(path)["state_dict"] for path in paths]
    found = average(paths)
    for name, tensor in found.items():
        mean = torch.stack([w[name] for w in weights]).double().mean(0)
        torch.testing.assert_close(tensor, mean.to(tensor.dtype))
    same = average([paths[0]] * 3)
    assert all(torch.equal(same[name], weights[0][name]) for name in same)


def test_counts_are_those_of_the_last_checkpoint(run: Path, tmp_path: Path) -> None:
    checkpoint = read(Kept.all(run / "checkpoints")[0].path)
    for count in (3, 8):
        checkpoint["state_dict"]["count"] = torch.tensor(count)
        CheckpointFiles().save_checkpoint(checkpoint, tmp_path / f"{count}.ckpt")
    assert average([tmp_path / "3.ckpt", tmp_path / "8.ckpt"])["count"] == 8


def test_more_may_be_kept_than_averaged(run: Path, tmp_path: Path) -> None:
    kept = Kept.all(shutil.copytree(run / "checkpoints", tmp_path / "checkpoints"))
    callback = KeptCheckpoints(kept[0].path.parent, "val/accuracy", "max", count=2, average=1)
    one_process = SimpleNamespace(
        is_global_zero=True, strategy=SimpleNamespace(broadcast=lambda value: value)
    )
    written = read(callback.write_average(one_process))["state_dict"]
    last = read(kept[-1].path)["state_dict"]
    assert all(torch.equal(weight, last[name]) for name, weight in written.items())


def test_test_measures_the_average(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = ["test", f"--checkpoint={run}", "--trainer.accelerator=cpu"]
    kept = Kept.all(run / "checkpoints")
    last = ["test", f"--checkpoint={kept[-1].path}", "--trainer.accelerator=cpu"]
    assert measured([*test, "--average=1"], capsys) == measured(last, capsys)
    assert measured([*test, "--average=best:1"], capsys) == measured(test, capsys)
    losses = {measured([*test, f"--average={n}"], capsys)["test/loss"] for n in (1, 2)}
    assert len(losses) == 2


def test_the_result_of_a_run_is_that_of_its_average_if_it_asks_for_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = [*TOY, f"--runs={tmp_path}", "--average=3", "--trainer.max_epochs=4"]
    assert main(fit) == 0
    assert "checkpoints/average.ckpt" in capsys.readouterr().out
    run = tmp_path / "toy" / "1"
    checkpoints = run / "checkpoints"
    kept = Kept.all(checkpoints)
    assert [one.step for one in kept] == [10, 15, 20]
    weights = read(checkpoints / "average.ckpt")["state_dict"]
    for name, tensor in average([one.path for one in kept]).items():
        assert torch.equal(tensor, weights[name])
    results = json.loads((run / "results.json").read_text())["results"]
    tested = measured(["test", f"--checkpoint={run}", "--trainer.accelerator=cpu"], capsys)
    assert tested["test/loss"] == pytest.approx(results["test/loss"], abs=1e-3)
    best = ["test", f"--checkpoint={checkpoints / 'best.ckpt'}", "--trainer.accelerator=cpu"]
    assert measured(best, capsys)["test/loss"] != tested["test/loss"]
    with (run / "metrics.csv").open() as file:  # its validation is no point of the curve
        steps = [row["step"] for row in csv.DictReader(file) if row["val/accuracy"]]
    assert steps == ["4", "9", "14", "19"]
    # resumed, it averages the validations before and after
    assert main(["fit", f"--resume={run}", "--trainer.max_epochs=5"]) == 0
    assert [one.step for one in Kept.all(checkpoints)] == [15, 20, 25]
    assert not torch.equal(read(checkpoints / "average.ckpt")["state_dict"][name], weights[name])
    # without one, the best counts again
    assert main(["fit", f"--resume={run}", "--trainer.max_epochs=6", "--average=0"]) == 0
    assert not (checkpoints / "average.ckpt").exists()


def test_weights_behind_the_checkpoint_of_a_resumed_run_are_of_no_average(tmp_path: Path) -> None:
    assert main([*TOY, f"--runs={tmp_path}", "--keep=2", "--trainer.max_epochs=3"]) == 0
    checkpoints = tmp_path / "toy" / "1" / "checkpoints"
    (checkpoints / "last.ckpt").write_bytes(b"damaged")  # it goes on from the best one, of step 5
    other = ["--model.lr=0.0001", "--average=2", "--trainer.max_epochs=2"]
    assert read(checkpoints / "best.ckpt")["global_step"] == 5
    assert main(["fit", f"--resume={checkpoints.parent}", *other]) == 0
    kept = Kept.all(checkpoints)
    assert [one.step for one in kept] == [5, 10]
    weights = read(checkpoints / "average.ckpt")["state_dict"]
    for name, tensor in average([one.path for one in kept]).items():
        assert torch.equal(tensor, weights[name])


def test_a_damaged_file_is_left_out_of_the_average_and_the_training_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TOY, f"--runs={tmp_path}", "--average=3", "--trainer.max_epochs=3"]) == 0
    run = tmp_path / "toy" / "1"
    damaged = Kept.all(run / "checkpoints")[-1].path
    damaged.write_bytes(damaged.read_bytes()[:1000])
    capsys.readouterr()
    assert main(["fit", f"--resume={run}", "--trainer.max_epochs=4"]) == 0
    said = capsys.readouterr().err
    assert re.search(rf"{damaged}: refused, not a whole .*; left out of the average\n", said)
    whole = [one.path for one in Kept.all(run / "checkpoints") if one.path != damaged]
    weights = read(run / "checkpoints" / "average.ckpt")["state_dict"]
    assert len(whole) == 2
    assert all(torch.equal(tensor, weights[name]) for name, tensor in average(whole).items())


@pytest.mark.parametrize(
    ("which", "printed"),
    [
        ("9", "train with --keep 9"),
        ("worst:2", "average is N for the last N or best:N, got 'worst:2'"),
        ("0", "got '0'"),
    ],
)
def test_what_cannot_be_averaged_is_one_line(
    run: Path, which: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["test", f"--checkpoint={run}", f"--average={which}"]) == 2
    assert printed in capsys.readouterr().err


def test_another_network_is_refused(run: Path, tmp_path: Path) -> None:
    path = Kept.all(run / "checkpoints")[0].path
    other = read(path)
    other["state_dict"] = {"weight": torch.zeros(2)}
    torch.save(other, tmp_path / "other.ckpt")
    with pytest.raises(InputError, match="not of the same network"):
        average([path, tmp_path / "other.ckpt"])


def test_weights_that_do_not_fit_are_one_line(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["test", f"--checkpoint={run}", "--model.d_model=16"]) == 2
    assert "its weights do not fit the model: size mismatch" in capsys.readouterr().err
