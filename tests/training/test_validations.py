"""A run that ends in a validation, by the user or by patience: resumed, it repeats no other."""

import csv
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from toy_command import TOY
from toy_task import Toy

from clusterformer import ClusterFormer
from clusterformer.cli.main import main
from clusterformer.training.checkpoints import read
from clusterformer.training.fit import Fitted, fit
from clusterformer.training.monitoring import Patience
from clusterformer.training.runs import Run


class CtrlC(Callback):
    """The user, once, in a validation of the training."""

    def __init__(self, validation: int) -> None:
        self._left = validation

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._left -= 1
        if self._left == 0:
            signal.raise_signal(signal.SIGINT)


def train(run: Run, options: dict[str, Any], *callbacks: Callback, resumed: bool = False) -> Fitted:
    torch.manual_seed(0)
    model = ClusterFormer(d_model=8, num_heads=2, num_layers=1, warmup=0, lr=0.01)
    options = {
        "accelerator": "cpu", "num_sanity_val_steps": 0, "enable_model_summary": False,
        "enable_progress_bar": False, "log_every_n_steps": 1, **options,
    }  # fmt: skip
    resume = run.last if resumed else None
    return fit(model, Toy(), options, run=run, resume=resume, draw=False, callbacks=callbacks,
               checkpoint_every=1, keep=1)  # fmt: skip


def rows(run: Run) -> list[dict[str, str]]:
    """Read the metrics; Lightning counts the epoch in which a training ended for the test alone."""
    found = list(csv.DictReader(run.metrics.read_text().splitlines()))
    assert found[-1].pop("epoch")
    return found


def test_the_last_step_is_validated_where_the_time_ends_between_validations(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "timed")
    rare = {"max_epochs": 10_000, "check_val_every_n_epoch": 10_000, "max_time": {"seconds": 1}}
    found = train(run, rare)
    assert "val/accuracy" in found.results
    assert read(run.checkpoints / "best.ckpt")["global_step"] == found.trainer.global_step


@pytest.mark.parametrize(
    ("options", "validation"),
    [
        ({"max_epochs": 3}, 1),
        ({"max_epochs": 3}, 3),  # the last one
        ({"max_epochs": 2, "val_check_interval": 2}, 1),  # within an epoch
        ({"max_epochs": 2, "val_check_interval": 2}, 2),
        ({"max_steps": 3}, 1),  # after the last step, within an epoch
        ({"max_steps": 8, "val_check_interval": 2}, 3),
        ({"max_steps": 4, "val_check_interval": 1}, 3),
        ({"max_epochs": 3, "check_val_every_n_epoch": 2}, 2),
    ],
)
def test_ctrl_c_in_a_validation_changes_nothing(
    options: dict[str, Any], validation: int, tmp_path: Path
) -> None:
    whole, part = Run.create(tmp_path, "whole"), Run.create(tmp_path, "part")
    expected = train(whole, options)
    with pytest.raises(KeyboardInterrupt):
        train(part, options, CtrlC(validation))
    found = train(part, options, resumed=True)
    assert found.results == expected.results
    assert rows(part) == rows(whole)
    for name in ("best.ckpt", "last.ckpt"):
        ours, theirs = (read(run.checkpoints / name) for run in (part, whole))
        assert ours["global_step"] == theirs["global_step"], name
        for key, weight in theirs["state_dict"].items():
            assert torch.equal(weight, ours["state_dict"][key]), name
    files = [{path.name for path in run.checkpoints.iterdir()} for run in (whole, part)]
    assert files[0] == files[1]


def test_the_best_of_validations_after_each_batch_counts(tmp_path: Path) -> None:
    """Lightning takes the interval 1 for 1.0, and would see the last of each epoch alone."""
    run = Run.create(tmp_path, "often")
    found = train(run, {"max_epochs": 2, "val_check_interval": 1})
    scores = [float(row["val/accuracy"]) for row in rows(run) if row["val/accuracy"]]
    assert len(scores) == 10
    assert found.results["val/accuracy"] == max(scores) > max(scores[4], scores[9])
    assert read(run.checkpoints / "best.ckpt")["global_step"] == 1 + scores.index(max(scores))


def test_patience_has_its_state_under_the_name_that_it_had() -> None:
    own, theirs = Patience("val/f1", mode="max"), EarlyStopping("val/f1", mode="max")
    assert own.state_key == theirs.state_key


@pytest.mark.parametrize("least", [{"min_steps": 9}, {"min_epochs": 3}])
def test_a_training_shorter_than_its_minimum_ends_in_a_validation(
    least: dict[str, Any], tmp_path: Path
) -> None:
    found = train(Run.create(tmp_path, "short"), {"max_steps": 3, **least})
    assert {"val/accuracy", "test/accuracy"} <= set(found.results)


@pytest.mark.parametrize(
    ("options", "steps"),
    [({"max_epochs": 3}, ["9", "14"]), ({"max_steps": 12}, ["9", "11"])],  # 5 batches an epoch
)
def test_a_last_epoch_is_validated_where_not_every_epoch_is(
    options: dict[str, Any], steps: list[str], tmp_path: Path
) -> None:
    run = Run.create(tmp_path, "rare")
    train(run, {**options, "check_val_every_n_epoch": 2})
    assert [row["step"] for row in rows(run) if row["val/accuracy"]] == steps


@pytest.mark.parametrize(
    ("options", "ended", "with_more_patience"),
    [  # 5 batches an epoch
        ([], 10, 20),
        (["--trainer.val_check_interval=2"], 4, 9),
        (["--trainer.val_check_interval=1"], 2, 4),
        # steps behind batches 3 and 5
        (["--trainer.val_check_interval=1", "--trainer.accumulate_grad_batches=3"], 1, 3),
        (["--trainer.val_check_interval=2", "--trainer.accumulate_grad_batches=3"], 2, 4),
    ],
)
def test_a_run_that_patience_ended_has_ended(
    options: list[str],
    ended: int,
    with_more_patience: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = [*TOY, f"--runs={tmp_path}", "--patience=1", "--trainer.max_epochs=40", *options]
    assert main([*command, "--model.lr=0"]) == 0
    assert "ended by --patience" in capsys.readouterr().out
    run = Run.open(tmp_path / "toy" / "1")
    step, results = read(run.last)["global_step"], run.results
    assert step == ended
    assert main(["fit", f"--resume={run.folder}"]) == 0
    told = capsys.readouterr().out
    assert "nothing is left to train; to train on, raise --patience" in told
    (run.folder / "results.json").write_text("")  # torn
    assert main(["fit", f"--resume={run.folder}"]) == 0
    assert read(run.last)["global_step"] == step
    assert run.results is not None
    assert results is not None
    assert run.results["results"] == results["results"]
    capsys.readouterr()
    assert main(["fit", f"--resume={run.folder}", "--patience=3"]) == 0
    assert "ended by --patience" in capsys.readouterr().out
    assert read(run.last)["global_step"] == with_more_patience
