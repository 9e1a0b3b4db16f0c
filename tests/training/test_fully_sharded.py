"""Sharded training is that of one process: losses, checkpoints, and the way on from them."""

import csv
import json
import math
import pickle
import signal
import time
from pathlib import Path

import pytest
import torch
from together import start_together, train_together
from torch import nn
from toy_command import TOY, error_of
from toy_task import Net, Toy

from clusterformer.cli.main import main
from clusterformer.errors import InputError
from clusterformer.models.config import TransformerConfig
from clusterformer.training.checkpoints import read
from clusterformer.training.shard_files import checksums, read_whole, write_shards

COMMAND = [*TOY, "--data.size=33", "--model.dropout=0", "--model.num_layers=2", "--model.warmup=2"]
COMMAND += ["--trainer.max_epochs=2", "--trainer.log_every_n_steps=1", "--baselines=false"]
CLUSTERS = ["--model.attention=NeuralClusteringAttention", "--model.attention.dense_length=0"]
CLUSTERS += ["--model.attention.num_clusters=3", "--model.sorting_weight=0.1"]
BARE = [*CLUSTERS, "--model.attention.coupling=false", "--model.clustering_weight=0"]
ROUTING = ["--model.attention=RoutingAttention", "--model.attention.num_clusters=3"]


def logged(run: Path) -> list[dict[str, float]]:
    with (run / "metrics.csv").open() as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


def losses(run: Path) -> dict[float, float]:
    """Loss of each step; a resumed run logs some of them again."""
    return {row["step"]: row["train/loss"] for row in logged(run) if "train/loss" in row}


def assert_every_example_once(notes: Path) -> None:
    """Each of both epochs has each of the 33 examples."""
    lines = [line for note in notes.iterdir() for line in note.read_text().splitlines()]
    for epoch in (range(5), range(5, 10)):
        seen = sorted(int(i) for step, i in map(str.split, lines) if int(step) in epoch)
        assert seen == list(range(33))


def train(number: int, runs: Path, options: list[str]) -> Path:
    if number == 1:
        assert main([*COMMAND, f"--runs={runs}", *options]) == 0
    else:
        log = runs.with_suffix(".log")
        assert set(train_together(number, [*COMMAND, f"--runs={runs}", *options], log)) == {0}, (
            log.read_text()
        )
    return runs / "toy" / "1"


def assert_same_form(found: Path, expected: Path) -> None:
    """A checkpoint has the names and shapes of another one."""
    one, other = (read(run / "checkpoints" / "last.ckpt") for run in (found, expected))
    assert one.keys() == other.keys()
    shapes = [{k: v.shape for k, v in each["state_dict"].items()} for each in (one, other)]
    assert shapes[0] == shapes[1]
    states = [each["optimizer_states"][0]["state"] for each in (one, other)]
    shapes = [{(k, n): v.shape for k, s in each.items() for n, v in s.items()} for each in states]
    assert shapes[0] == shapes[1]
    assert one["global_step"] == other["global_step"]


@pytest.mark.parametrize(
    ("number", "strategy", "model"),
    [
        pytest.param(2, "fsdp2", [*CLUSTERS, "--trainer.max_epochs=1"], id="whole"),
        pytest.param(3, "fsdp2_sharded_checkpoint", CLUSTERS, id="shards", marks=pytest.mark.slow),
        pytest.param(2, "fsdp2", BARE, id="bare", marks=pytest.mark.slow),
        pytest.param(2, "fsdp2", ROUTING, id="routing", marks=pytest.mark.slow),
    ],
)
def test_sharded_processes_train_as_one(
    number: int, strategy: str, model: list[str], tmp_path: Path
) -> None:
    one = train(1, tmp_path / "one", model)
    found = train(number, tmp_path / "sharded", [*model, f"--trainer.strategy={strategy}"])
    expected = logged(one)
    assert len(expected) >= 6
    for row, reference in zip(logged(found), expected, strict=True):
        assert row == pytest.approx(reference, rel=1e-3, abs=1e-5, nan_ok=True)
    if model is not BARE:  # there weight decay also takes weights that nothing uses
        assert_same_form(found, one)
    ends = [json.loads((run / "results.json").read_text()) for run in (found, one)]
    assert ends[0]["results"] == pytest.approx(ends[1]["results"], rel=1e-3, nan_ok=True)
    if strategy.endswith("checkpoint"):  # one process reads the parts of all
        assert main(["test", f"--checkpoint={found}"]) == 0
    # a weight of few rows is not divided evenly
    assert 1 / number <= ends[0]["held_mib"] / ends[1]["held_mib"] < 1 / number + 0.1
    assert {path.suffix for path in (found / "checkpoints").iterdir()} == (
        {".ckpt", ".shards"} if strategy.endswith("checkpoint") else {".ckpt"}
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ((3, "fsdp2_sharded_checkpoint"), (2, "fsdp2_sharded_checkpoint")),
        ((2, "fsdp2_sharded_checkpoint"), (1, "auto")),
        ((1, "auto"), (2, "fsdp2")),
        ((2, "fsdp2"), (2, "ddp")),
    ],
)
def test_a_run_goes_on_with_another_number_of_processes(
    first: tuple[int, str], then: tuple[int, str], tmp_path: Path
) -> None:
    """Stopped within the second epoch, it ends with the losses and the examples of a whole run."""
    (tmp_path / "notes").mkdir()
    one = train(1, tmp_path / "one", CLUSTERS)
    noted = [*CLUSTERS, f"--data.notes={tmp_path / 'notes'}", "--trainer.max_steps=7"]
    run = train(first[0], tmp_path / "run", [*noted, f"--trainer.strategy={first[1]}"])
    resume = ["fit", f"--resume={run}", "--trainer.max_steps=10", f"--trainer.strategy={then[1]}"]
    log = tmp_path / "log"
    assert set(train_together(then[0], resume, log)) == {0}, log.read_text()
    assert losses(run) == pytest.approx(losses(one), rel=1e-3)
    assert read(run / "checkpoints" / "last.ckpt")["global_step"] == 10
    assert_every_example_once(tmp_path / "notes")


@pytest.mark.parametrize("score", [0.5, 9.143e11, -3.2e9, 1e-7, math.nan])
def test_shards_of_a_kept_checkpoint_of_any_score_are_read(score: float, tmp_path: Path) -> None:
    checkpoint = tmp_path / f"step6_{score:.6g}.ckpt"
    folder = tmp_path / f"{checkpoint.stem}-ab12cd34.shards"
    write_shards({"model/a": torch.arange(3.0)}, folder)
    entry = {"folder": folder.name, "files": checksums(folder), "scalars": []}
    assert torch.equal(read_whole(checkpoint, entry)["model/a"], torch.arange(3.0))


@pytest.mark.slow
def test_shards_of_the_users_checkpoints_come_and_go_with_them(tmp_path: Path) -> None:
    """The one that is kept stands beside last.ckpt, with a name that begins like its own."""
    own = ["--trainer.callbacks=lightning.pytorch.callbacks.ModelCheckpoint"]
    own += [
        "--trainer.callbacks.filename=last-{step} (mine)",
        "--trainer.callbacks.every_n_epochs=1",
    ]
    strategy = "--trainer.strategy=fsdp2_sharded_checkpoint"
    run = train(2, tmp_path / "runs", [*CLUSTERS, strategy, *own])
    checkpoints = list((run / "checkpoints").glob("*.ckpt"))
    assert sorted(path.name for path in checkpoints) == [
        "best.ckpt", "last-step=10 (mine).ckpt", "last.ckpt"
    ]  # fmt: skip
    assert all(read(path)["state_dict"] for path in checkpoints)
    assert len(list((run / "checkpoints").glob("*.shards"))) == 3


def test_a_changed_shard_is_refused_and_nothing_in_it_is_executed(tmp_path: Path) -> None:
    tensors = {"model/a": torch.arange(6.0).reshape(2, 3), "model/b": torch.tensor([2.0])}
    folder = tmp_path / "last-1.shards"
    write_shards(tensors, folder)
    entry = {"folder": folder.name, "files": checksums(folder), "scalars": ["model/b"]}
    found = read_whole(tmp_path / "last.ckpt", entry)
    assert torch.equal(found["model/a"], tensors["model/a"])
    assert found["model/b"].shape == ()
    with pytest.raises(InputError, match="beside it"):
        read_whole(tmp_path / "last.ckpt", {**entry, "folder": "../last-1.shards"})
    (folder / ".metadata").write_bytes(pickle.dumps(Path.home))
    with pytest.raises(InputError, match="changed since it was written"):
        read_whole(tmp_path / "last.ckpt", entry)
    with pytest.raises(InputError, match="table of contents: UnpicklingError"):
        read_whole(tmp_path / "last.ckpt", {**entry, "files": checksums(folder)})


def test_other_ways_to_shard_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "take fsdp2" in error_of([*COMMAND, "--trainer.strategy=fsdp"], capsys)
    for name in ("deepspeed_stage_3", "lightning.pytorch.strategies.DeepSpeedStrategy"):
        assert "take fsdp2" in error_of([*COMMAND, f"--trainer.strategy={name}"], capsys)
    for name in ("zero3", "ddp_spawn", "ddp_notebook", "sequence_parallel_3"):
        told = "trainer.strategy must be auto, ddp, fsdp2, fsdp2_sharded_checkpoint or sequence_"
        assert told in error_of([*COMMAND, f"--trainer.strategy={name}"], capsys)
    lightnings = "--trainer.strategy=lightning.pytorch.strategies.ModelParallelStrategy"
    assert "take fsdp2" in error_of([*COMMAND, lightnings], capsys)
    scaled = [*COMMAND, "--trainer.precision=16-mixed", "--trainer.strategy=fsdp2"]
    assert "take bf16-mixed or 32-true" in error_of(scaled, capsys)


@pytest.mark.slow
def test_a_killed_process_loses_no_example(tmp_path: Path) -> None:
    """Two of three go down with the one that is killed; two others go on from the checkpoint."""
    whole, notes, log = tmp_path / "whole", tmp_path / "notes", tmp_path / "log"
    sharded = ["--trainer.strategy=fsdp2_sharded_checkpoint", "--checkpoint_every=2"]
    command = [*COMMAND, *CLUSTERS, *sharded, f"--data.notes={notes}"]
    notes.mkdir()
    train(1, whole, CLUSTERS)
    processes = start_together(3, [*command, f"--runs={tmp_path}", "--data.pause=0.5"], log)
    checkpoint = tmp_path / "toy" / "1" / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + 60
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)  # into a step
    processes[2].kill()
    killed = time.monotonic()
    for process in processes:
        process.join(30)
    assert time.monotonic() - killed < 30
    assert [process.exitcode for process in processes] == [2, 2, -signal.SIGKILL]
    assert "of 3 that trained together, at step" in log.read_text()
    assert "Traceback" not in log.read_text()
    step = read(checkpoint)["global_step"]
    for note in notes.iterdir():  # of steps after the checkpoint, which are trained again
        kept = [line for line in note.read_text().splitlines() if int(line.split()[0]) < step]
        note.write_text("".join(f"{line}\n" for line in kept))
    resume = ["fit", f"--resume={tmp_path / 'toy' / '1'}", "--data.pause=0"]
    assert set(train_together(2, resume, log)) == {0}, log.read_text()
    assert_every_example_once(notes)
    assert losses(tmp_path / "toy" / "1") == pytest.approx(losses(whole / "toy" / "1"), rel=1e-3)


def test_nan_in_the_batch_of_one_process_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(task: Toy, config: TransformerConfig) -> nn.Module:
        network = Net(config)
        if task.rank == 1:
            network.head.register_forward_hook(lambda _, __, output: output * math.nan)
        return network

    monkeypatch.setattr(Toy, "build", build)
    log = tmp_path / "log"
    command = [*COMMAND, "--trainer.strategy=fsdp2", f"--runs={tmp_path}"]
    codes = train_together(2, command, log)
    assert codes[0] == 2, log.read_text()
    assert codes[1] != 0
    printed = [line for line in log.read_text().splitlines() if "error:" in line]
    assert len(printed) == 1, log.read_text()
    assert "not finite at step 0" in printed[0]
    assert "NaN or infinity first in the output of head" in printed[0]


@pytest.mark.slow
def test_bf16_is_that_of_one_process(tmp_path: Path) -> None:
    options = [*CLUSTERS, "--trainer.precision=bf16-mixed", "--trainer.max_epochs=1"]
    one = train(1, tmp_path / "one", options)
    found = train(2, tmp_path / "two", [*options, "--trainer.strategy=fsdp2"])
    assert losses(found) == pytest.approx(losses(one), rel=0.02)


@pytest.mark.slow
def test_a_full_disk_of_one_process_is_one_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [*COMMAND, *CLUSTERS, "--trainer.strategy=fsdp2_sharded_checkpoint"]
    codes = train_together(2, [*command, f"--runs={tmp_path}"], log, {1: 50_000})
    printed = [line for line in log.read_text().splitlines() if "error:" in line]
    assert (codes[0], len(printed)) == (2, 1), log.read_text()
    assert codes[1] != 0
    assert "process 1 cannot write" in printed[0]
    assert "File too large; last good checkpoint: none" in printed[0]
    assert not list((tmp_path / "toy" / "1").glob("checkpoints/*"))
