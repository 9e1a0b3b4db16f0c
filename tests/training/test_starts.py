"""Starts and ends of a run: resumed, interrupted, refused, finished, locked."""

import csv
import fcntl
import os
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Process
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from toy_command import TOY, error_of
from toy_task import Toy

from clusterformer import ClusterFormer
from clusterformer.cli.main import main
from clusterformer.errors import InputError
from clusterformer.training.checkpoint_callbacks import LastCheckpoint
from clusterformer.training.checkpoints import read
from clusterformer.training.fit import fit
from clusterformer.training.metrics_file import MetricsFile
from clusterformer.training.progress import TrainingClock
from clusterformer.training.runs import Run
from clusterformer.training.stopping import Stopping

STEPS = 3  # of the five of an epoch


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that ended within its first epoch."""
    runs = tmp_path_factory.mktemp("runs")
    steps = [f"--trainer.max_steps={STEPS}", "--trainer.log_every_n_steps=1"]
    assert main([*TOY, f"--runs={runs}", *steps]) == 0
    return runs / "toy" / "1"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "runs" / "toy" / "1")


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def names(run: Path) -> set[str]:
    return {str(path.relative_to(run)) for path in run.rglob("*")}


def test_steps_that_end_within_an_epoch_end_with_a_validation(finished: Path) -> None:
    assert [row["step"] for row in rows(finished) if row["val/accuracy"]] == [str(STEPS - 1)]
    assert (finished / "checkpoints" / "best.ckpt").exists()


def test_a_last_epoch_with_validations_within_it_ends_with_one(tmp_path: Path) -> None:
    options = ["--trainer.max_epochs=2", "--trainer.val_check_interval=2"]  # of five batches
    assert main([*TOY, f"--runs={tmp_path}", *options]) == 0
    validated = [row["step"] for row in rows(tmp_path / "toy" / "1") if row["val/accuracy"]]
    assert validated == ["1", "3", "6", "8", "9"]


def test_a_training_that_tests_no_batches_ends_with_its_validation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = "--trainer.limit_test_batches=0"
    assert main([*TOY, f"--runs={tmp_path}", none]) == 0
    run = Run.open(tmp_path / "toy" / "1")
    assert run.results is not None
    assert run.results["results"].keys() == {"val/accuracy"}
    command = [f"--checkpoint={run.folder}", "--trainer.accelerator=cpu"]
    expected = "trainer.limit_{}_batches must be above 0 to measure, got 0"
    assert error_of(["test", *command, none], capsys) == expected.format("test")
    none = "--trainer.limit_val_batches=0"
    assert error_of(["validate", *command, none], capsys) == expected.format("val")


def test_a_training_without_validation_says_that_nothing_was_tested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TOY, f"--runs={tmp_path}", "--trainer.limit_val_batches=0"]) == 0
    said = "no validation took place to choose a checkpoint, so none was tested"
    assert said in capsys.readouterr().err


def test_patience_without_validations_is_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = "--trainer.limit_val_batches=0"
    said = error_of([*TOY, f"--runs={tmp_path}", none, "--patience=2"], capsys)
    assert said.startswith("patience waits for validations, and trainer.limit_val_batches 0 has")
    assert not list(tmp_path.glob("*/*/metrics.csv"))


def test_checkpoints_of_the_user_stand_beside_ours(tmp_path: Path) -> None:
    own = "--trainer.callbacks=lightning.pytorch.callbacks.ModelCheckpoint"
    assert main([*TOY, f"--runs={tmp_path}", own]) == 0
    run = Run.open(tmp_path / "toy" / "1")
    assert {path.name for path in run.checkpoints.iterdir()} >= {"best.ckpt", "last.ckpt"}
    assert run.results is not None
    assert run.results["results"].keys() >= {"val/accuracy", "test/accuracy"}


@pytest.mark.parametrize(
    "options",
    [["EarlyStopping", "--trainer.callbacks.monitor=val/loss"], ["TQDMProgressBar"]],
    ids=lambda options: options[0],
)
def test_a_callback_of_lightning_goes_by_its_name(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TOY, f"--runs={tmp_path}", "--trainer.callbacks", *options]) == 0
    assert (capsys.readouterr().out.count("epoch 1, step ") == 0) == (len(options) == 1)


def test_validation_batches_may_be_tried_before_the_first_step(tmp_path: Path, capsys) -> None:
    assert main([*TOY, f"--runs={tmp_path}", "--trainer.num_sanity_val_steps=1"]) == 0
    assert capsys.readouterr().out.count("epoch 1, step ") == 1


def test_resuming_a_finished_run_changes_nothing(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = names(run), (run / "metrics.csv").read_bytes(), (run / "results.json").read_bytes()
    for options in ([], ["--model.lr=0.5"]):
        assert main(["fit", f"--resume={run}", *options]) == 0
        told = capsys.readouterr().out
        assert "finished, nothing is left to train" in told
        assert told.endswith("; without effect: model.lr\n") == bool(options)
    for other in ("attention", "outer_attention"):
        assert main(["fit", f"--resume={run}", f"--model.{other}=ReformerAttention"]) == 2
        told = capsys.readouterr().err
        assert f"--model.{other}: {run} was trained with" in told
        assert "got ReformerAttention; another model begins a new run" in told
    assert (
        names(run),
        (run / "metrics.csv").read_bytes(),
        (run / "results.json").read_bytes(),
    ) == (before)


def test_a_start_that_does_not_fit_spoils_nothing(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = names(run), (run / "metrics.csv").read_bytes()
    longer = [f"--resume={run}", f"--trainer.max_steps={STEPS + 1}"]
    message = error_of(["fit", "--pictures=false", *longer, "--model.d_model=16"], capsys)
    assert "the checkpoint does not fit the model" in message
    assert "fit --model.init_from " in message
    assert (names(run), (run / "metrics.csv").read_bytes()) == before
    assert main(["fit", "--pictures=false", *longer]) == 0
    assert read(run / "checkpoints" / "last.ckpt")["global_step"] == STEPS + 1


def test_a_damaged_last_checkpoint_is_named_and_the_best_goes_on(
    run: Path, finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    last, best = run / "checkpoints" / "last.ckpt", run / "checkpoints" / "best.ckpt"
    whole = last.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    longer = ["fit", f"--resume={run}", f"--trainer.max_steps={STEPS + 1}"]
    for damaged in (whole[:1000], b"", bytes(flipped)):
        (run / "results.json").unlink(missing_ok=True)
        shutil.copy(finished / "checkpoints" / "best.ckpt", best)
        last.write_bytes(damaged)
        capfd.readouterr()
        assert main(longer) == 0
        [line] = [line for line in capfd.readouterr().err.splitlines() if "refused" in line]
        assert line.startswith(f"{last}: refused, not a whole checkpoint")
        assert line.endswith(f"going on from the last good one, {best}, step {STEPS}")
        assert read(last)["global_step"] == STEPS + 1
    last.write_bytes(b"")
    best.write_bytes(b"")
    assert main(longer) == 2
    assert "no other checkpoint is whole: begin anew with" in capfd.readouterr().err


def test_a_damaged_best_checkpoint_is_named_before_the_training_goes_on(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    best, before = run / "checkpoints" / "best.ckpt", names(run)
    best.write_bytes(best.read_bytes()[:1000])
    longer = ["fit", "--pictures=false", f"--resume={run}", f"--trainer.max_steps={STEPS + 1}"]
    longer.append("--model.lr=0")  # nothing better comes
    assert main(longer) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith(f"clusterformer: error: {best}: refused, not a whole checkpoint")
    assert line.endswith("put a whole one there, or remove it to go on without it")
    assert read(run / "checkpoints" / "last.ckpt")["global_step"] == STEPS
    assert names(run) == before
    best.unlink()
    assert main(longer) == 0
    assert f"{best} is not there; the best validation from now on" in capfd.readouterr().err
    assert read(best)["global_step"] == STEPS + 1


def test_a_new_learning_rate_counts_from_the_first_resumed_step(run: Path, capsys) -> None:
    first = float(rows(run)[0]["train/lr"])
    command = ["fit", f"--resume={run}", f"--trainer.max_steps={STEPS + 2}", "--model.lr=0.5"]
    assert main(command) == 0
    [said] = [line for line in capsys.readouterr().out.splitlines() if "changed" in line]
    steps = f"trainer.max_steps {STEPS + 2} (was {STEPS})"
    assert said.startswith("changed options: model.lr 0.5 (was ")
    assert said.endswith(steps)
    rates = [float(row["train/lr"]) for row in rows(run) if row["train/lr"]]
    assert len(rates) == STEPS + 2
    assert min(rates[STEPS:]) > 100 * max(first, *rates[:STEPS])


def test_the_best_result_is_that_of_its_file_after_a_kill_behind_the_last_checkpoint(
    tmp_path: Path,
) -> None:
    options = ["--model.lr=0.03", "--model.warmup=0", "--model.schedule=constant", "--data.size=40"]
    command = [*TOY, *options, "--trainer.val_check_interval=2", f"--runs={tmp_path}"]
    assert main([*command, "--trainer.max_epochs=3"]) == 0
    assert main([*command, "--trainer.max_epochs=2"]) == 0
    whole, killed = (Run.open(tmp_path / "toy" / number) for number in "12")
    step = read(whole.best)["global_step"]
    assert step > read(killed.last)["global_step"]
    shutil.copy(whole.best, killed.best)
    resume = ["fit", f"--resume={killed.folder}", "--trainer.max_epochs=3"]
    assert main([*resume, "--model.lr=0"]) == 0  # nothing better comes
    assert read(killed.best)["global_step"] == step
    assert killed.results is not None
    assert whole.results is not None
    assert killed.results["results"] == whole.results["results"]


def test_a_new_patience_counts_from_the_first_resumed_validation(tmp_path: Path) -> None:
    still = ["--model.lr=0", "--trainer.max_epochs=9", f"--runs={tmp_path}"]
    assert main([*TOY, *still, "--patience=2"]) == 0
    run = tmp_path / "toy" / "1"
    assert read(run / "checkpoints" / "last.ckpt")["global_step"] == 3 * 5
    assert main(["fit", f"--resume={run}", "--patience=4"]) == 0
    assert read(run / "checkpoints" / "last.ckpt")["global_step"] == 5 * 5


def test_seconds_are_those_of_all_starts(run: Path) -> None:
    first = Run(run).results
    assert main(["fit", f"--resume={run}", f"--trainer.max_steps={STEPS + 1}"]) == 0
    second = Run(run).results
    assert first is not None
    assert second is not None
    assert second["seconds"] > first["seconds_validating"] + second["seconds_a_step"]
    assert second["steps_an_epoch"] == 5


def test_no_time_counts_before_training_starts() -> None:
    clock = TrainingClock()
    clock.load_state_dict({"seconds": 3.0, "seconds_validating": 1.0})
    time.sleep(0.05)
    assert clock.seconds == 3.0


def test_two_processes_never_train_in_one_directory(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["fit", f"--resume={run}", f"--trainer.max_steps={STEPS + 1}"]
    with Run(run).locked():
        assert "another process trains in this run directory" in error_of(command, capsys)
    assert main(command) == 0


def test_a_process_that_opened_the_lock_before_its_release_shuts_out_others(run: Path) -> None:
    with Run(run).locked():
        other = os.open(run / ".lock", os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(InputError, match="another process trains"), Run(run).locked():
        pass
    os.close(other)


def test_a_directory_in_which_nothing_began_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "toy" / "1").mkdir(parents=True)
    message = error_of(["fit", f"--resume={tmp_path / 'toy' / '1'}"], capsys)
    assert "no training began here" in message


def test_bad_test_data_are_known_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = "".join(f"{i % 2}\ta text of {i} words\n" for i in range(40))
    (tmp_path / "train.tsv").write_text(f"label\ttext\n{table}")
    (tmp_path / "test.tsv").write_text("label\ttext\n0\n")
    command = [
        *(
            "fit",
            "--pictures=false",
            "--config=classify.yaml",
            f"--data.train={tmp_path / 'train.tsv'}",
        ),
        *(f"--data.test={tmp_path / 'test.tsv'}", f"--runs={tmp_path / 'runs'}"),
    ]
    assert "test.tsv" in error_of(command, capsys)
    assert not list((tmp_path / "runs").rglob("*.ckpt"))


def test_ctrl_c_keeps_the_step_that_was_running(tmp_path: Path) -> None:
    output = tmp_path / "output"
    command = [sys.executable, "-m", "clusterformer", *TOY, f"--runs={tmp_path}"]
    command += ["--data.pause=0.2", "--trainer.max_steps=4", "--trainer.log_every_n_steps=1"]
    toys = str(Path(__file__).parents[1] / "toy")
    with output.open("wb") as file:
        process = Process(command, stdout=file, env={**os.environ, "PYTHONPATH": toys})
        run, deadline = tmp_path / "toy" / "1", time.monotonic() + 60
        while not (run / "config.yaml").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait() == 130
    written = output.read_text()
    assert "stopping after this step" in written
    assert f"go on with: clusterformer fit --resume {run}" in written
    step = read(run / "checkpoints" / "last.ckpt")["global_step"]
    assert 0 < step < 4
    assert main(["fit", f"--resume={run}", "--data.pause=0"]) == 0
    assert read(run / "checkpoints" / "last.ckpt")["global_step"] == 4
    rows = csv.DictReader((run / "metrics.csv").read_text().splitlines())
    assert [row["step"] for row in rows if row["train/loss"]] == ["0", "1", "2", "3"]


def test_a_run_keeps_its_seed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = names(run)
    told = f"--seed_everything: {run} was trained with 0, got 5; leave the option out"
    for steps in (STEPS, STEPS + 1):  # nothing is left to train, or a step
        command = ["fit", f"--resume={run}", f"--trainer.max_steps={steps}", "--seed_everything=5"]
        assert error_of(command, capsys) == told
    assert names(run) <= {*before, ".lock"}


def test_ctrl_c_in_a_test_ends_as_in_training(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Lightning leaves it ignored
        signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(ClusterFormer, "test_step", interrupt)
    try:
        assert main(["test", f"--checkpoint={run}", "--trainer.accelerator=cpu"]) == 130
        assert main([*TOY, f"--runs={tmp_path / 'new'}"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    new = tmp_path / "new" / "toy" / "1"
    assert f"go on with: clusterformer fit --resume {new}" in capsys.readouterr().err
    assert not (new / "results.json").exists()


def test_ctrl_c_is_answered_by_the_first_process_alone(monkeypatch, capsys) -> None:
    for rank in range(2):
        monkeypatch.setattr(rank_zero_only, "rank", rank, raising=False)
        Stopping(LastCheckpoint(None, 1))._interrupt()
    assert capsys.readouterr().err.count("stopping after this step") == 1


class Sent(Callback):
    """A signal, in the second batch."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 1 and trainer.global_step == 0:
            signal.raise_signal(self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_the_batches_that_a_step_has_accumulated(
    number: signal.Signals, tmp_path: Path
) -> None:
    def train(name: str, *callbacks: Callback, resume: Path | None = None) -> Path:
        torch.manual_seed(0)
        model = ClusterFormer(d_model=8, num_heads=2, num_layers=1, warmup=0)
        options = {"accelerator": "cpu", "max_epochs": 2, "accumulate_grad_batches": 3}
        options |= {"num_sanity_val_steps": 0, "enable_model_summary": False}
        run = Run.open(tmp_path / name / "1") if resume else Run.create(tmp_path, name)
        fit(model, Toy(), options, run=run, resume=resume, draw=False, callbacks=callbacks)
        return run.last

    whole = read(train("whole"))
    with pytest.raises(KeyboardInterrupt):
        train("part", Sent(number))
    last = tmp_path / "part" / "1" / "checkpoints" / "last.ckpt"
    assert read(last)["global_step"] == 1
    resumed = read(train("part", resume=last))
    assert resumed["global_step"] == whole["global_step"] == 4
    for name, weight in whole["state_dict"].items():
        assert torch.equal(weight, resumed["state_dict"][name])


@pytest.mark.parametrize("torn", ["2\n", "2,\0\n2,1,1\n", "x,0.5\n", "²,1\n"])
def test_torn_rows_of_metrics_are_left_out(torn: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(f"step,loss\n0,1.0\n1,0.5\n{torn}")
    MetricsFile(path, step=2).log_metrics({"loss": 0.25}, step=2)
    assert path.read_text().splitlines() == ["step,loss", "0,1.0", "1,0.5", "2,0.25"]


def test_another_table_in_place_of_the_metrics_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("name,age\nx,3\n")
    with pytest.raises(InputError, match="no column step; move it away"):
        MetricsFile(path, step=2)


def test_metrics_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "metrics.csv"
    with pytest.raises(InputError, match=r"metrics\.csv: cannot be written: no such directory"):
        MetricsFile(path).log_metrics({}, step=0)


def test_starts_that_fail_side_by_side_leave_each_other_alone(tmp_path: Path) -> None:
    def fail(_: int) -> None:
        for _ in range(300):
            Run.create(tmp_path, "a").cancel()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(fail, range(2)))
    assert not list(tmp_path.iterdir())


def test_clocks_that_differ_finish_no_run(tmp_path: Path) -> None:
    """A start on a machine whose clock is behind that of the start before."""
    run = Run.create(tmp_path, "a")

    def begin() -> None:
        run.prepare({"a": 1})
        run.confirm()

    begin()
    run.finish({})
    assert run.finished
    ahead = time.time() + 86_400
    os.utime(run.folder / "results.json", (ahead, ahead))
    begin()
    assert not run.finished
    os.utime(run.config, (ahead, ahead))
    run.finish({})
    assert run.finished
