"""Output whose reader goes away, and files that cannot be written whole."""

import os
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import FORK
from full_disk import limited_files
from torchmetrics import SpearmanCorrCoef
from toy_command import TOY, error_of

from clusterformer.cli.logs import quieten
from clusterformer.cli.main import main
from clusterformer.errors import InputError
from clusterformer.training.checkpoint_callbacks import BestCheckpoint
from clusterformer.training.checkpoints import CHECKPOINT_KEY, CheckpointFiles, read


def train_into_a_closed_pipe(runs: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    train_into(writer, writer, runs)


def train_into(output: int, errors: int, runs: Path) -> None:
    os.dup2(output, 1)
    os.dup2(errors, 2)
    # Python's own streams, unlike pytest's, write to the descriptors
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    os._exit(main([*TOY, f"--runs={runs}"]))


def test_training_goes_on_when_its_reader_leaves(tmp_path: Path) -> None:
    process = FORK.Process(target=train_into_a_closed_pipe, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert (tmp_path / "toy" / "1" / "results.json").exists()
    assert (tmp_path / "toy" / "1" / "checkpoints" / "best.ckpt").exists()


WATCHED = """
from pathlib import Path
from clusterformer.attention import FullAttention
class Watched(FullAttention):
    def forward(self, q, *arguments, **options):
        Path(f"measured-{q.shape[2]}").touch()
        return super().forward(q, *arguments, **options)
"""


def bench_into_a_closed_pipe(folder: Path, options: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    os.chdir(folder)
    sizes = ["--lengths", "16", "32", "--batch=1", "--d_model=8", "--num_heads=2", "--repeats=1"]
    os._exit(main(["bench", "--mechanisms=watched.Watched", "--no-memory", *sizes, *options]))


@pytest.mark.parametrize(("options", "lengths"), [([], [16]), (["--out=a.json"], [16, 32])])
def test_measuring_ends_when_its_reader_leaves_unless_it_writes_a_file(
    tmp_path: Path, options: list[str], lengths: list[int]
) -> None:
    (tmp_path / "watched.py").write_text(WATCHED)
    process = FORK.Process(target=bench_into_a_closed_pipe, args=(tmp_path, options))
    process.start()
    process.join()
    assert process.exitcode == 0
    measured = [f"measured-{length}" for length in lengths]
    assert sorted(path.name for path in tmp_path.glob("measured-*")) == measured


def train_into_a_full_disk(runs: Path) -> None:
    errors = os.open(runs / "errors", os.O_WRONLY | os.O_CREAT)
    train_into(os.open("/dev/full", os.O_WRONLY), errors, runs)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_training_ends_before_its_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    process = FORK.Process(target=train_into_a_full_disk, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 2
    assert (tmp_path / "toy" / "1" / "results.json").exists()
    said = "clusterformer: error: stdout was cut short: No space left on device\n"
    assert (tmp_path / "errors").read_text() == said


def predict_into_a_full_disk(runs: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 1)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    os.dup2(os.open(runs / "errors", os.O_WRONLY | os.O_CREAT), 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    (runs / "texts.txt").write_text("1 2 3\n")
    predict = ["predict", f"--checkpoint={runs / 'toy' / '1'}", f"--input={runs / 'texts.txt'}"]
    os._exit(main([*predict, "--device=cpu"]))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_an_answer_that_cannot_be_written_names_standard_output(tmp_path: Path) -> None:
    assert main([*TOY, f"--runs={tmp_path}"]) == 0
    process = FORK.Process(target=predict_into_a_full_disk, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 2
    said = "clusterformer: error: standard output: No space left on device\n"
    assert (tmp_path / "errors").read_text() == said


def contents(weight: torch.Tensor) -> dict[str, Any]:
    """A whole checkpoint, as small as one can be."""
    entries = {"version": "0", "config": None, "seed": 0, "kind": "Toy", "mode": "max", "task": {}}
    return {CHECKPOINT_KEY: entries, "state_dict": {"weight": weight}, "global_step": 1}


def test_a_command_gives_the_streams_back() -> None:
    streams = sys.stdout, sys.stderr
    assert main([*TOY, "--model.lr=x"]) == 2
    assert (sys.stdout, sys.stderr) == streams


def test_the_buffer_of_a_rank_correlation_is_not_warned_of() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        SpearmanCorrCoef()
        before = len(told)
        quieten()
        SpearmanCorrCoef()
    assert (before, len(told)) == (1, 1)


def test_a_full_disk_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    files, path = CheckpointFiles(), tmp_path / "last.ckpt"
    small = contents(torch.ones(3))
    files.save_checkpoint(small, path)
    large = contents(torch.ones(100_000))
    said = r"File too large; last good checkpoint: .*last\.ckpt"
    with limited_files(100_000), pytest.raises(InputError, match=said):
        files.save_checkpoint(large, path)
    assert [found.name for found in tmp_path.iterdir()] == ["last.ckpt"]
    assert torch.equal(read(path)["state_dict"]["weight"], torch.ones(3))


def test_a_moved_run_without_a_best_checkpoint_is_not_warned_of(tmp_path: Path) -> None:
    first = BestCheckpoint(tmp_path / "first", "val/accuracy", "max")
    moved = BestCheckpoint(tmp_path / "moved", "val/accuracy", "max")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moved.load_state_dict(first.state_dict())


def test_a_new_run_that_does_not_fit_leaves_no_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with limited_files(100):
        said = error_of([*TOY, f"--runs={tmp_path}"], capsys)
    assert said == f"{tmp_path}/toy/1/.environment.json.new: File too large"
    assert not list(tmp_path.iterdir())


def test_changed_bits_of_a_checkpoint_are_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TOY, f"--runs={tmp_path}", "--trainer.max_steps=1"]) == 0
    path = tmp_path / "toy" / "1" / "checkpoints" / "last.ckpt"
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda member: member.file_size)
    data = bytearray(path.read_bytes())
    data[largest.header_offset + 200 + largest.file_size // 2] ^= 0x40
    path.write_bytes(data)
    assert "last.ckpt: refused" in error_of(["test", f"--checkpoint={path}"], capsys)


def test_weights_that_are_nan_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TOY, f"--runs={tmp_path}", "--trainer.max_steps=1"]) == 0
    path = tmp_path / "toy" / "1" / "checkpoints" / "last.ckpt"
    checkpoint = read(path)
    name = next(iter(checkpoint["state_dict"]))
    checkpoint["state_dict"][name].view(-1)[0] = float("nan")
    torch.save(checkpoint, path)
    assert f"{name} holds NaN" in error_of(["test", f"--checkpoint={path}"], capsys)
