"""Runs: what `fit` leaves, and what the other commands make of it."""

import csv
import json
import os
import pickle
import re
import sys
import threading
from pathlib import Path

import pytest
import torch
from toy_command import TOY, error_of

from clusterformer.cli.main import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished training."""
    runs = tmp_path_factory.mktemp("runs")
    options = ["--trainer.log_every_n_steps=1", "--pictures=true"]
    assert main([*TOY, f"--runs={runs}", *options]) == 0
    return runs / "toy" / "1"


def test_fit_leaves_a_whole_run_folder(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    files = {"config.yaml", "environment.json", "metrics.csv", "results.json"}
    assert names == files | {"checkpoints", "pictures", ".lock"}
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    assert "class_path: toy_task.Toy" in (run / "config.yaml").read_text()
    environment = json.loads((run / "environment.json").read_text())
    assert environment["seed"] == 0
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["commit"] is None or re.fullmatch(r"[0-9a-f]{40}\+?", environment["commit"])
    results = json.loads((run / "results.json").read_text())["environment"]
    assert {key: environment[key] for key in results} == results
    assert environment.keys() - results.keys() == {"started", "seed", "wandb_id", "data"}
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows if row["train/loss"]] == ["0", "1", "2", "3", "4"]
    assert sum(bool(row["val/accuracy"]) for row in rows) == 1


def test_a_second_run_stands_beside_the_first(tmp_path: Path) -> None:
    command = [*TOY, f"--runs={tmp_path}", "--trainer.max_steps=1"]
    assert [main(command), main(command)] == [0, 0]
    assert sorted(path.name for path in (tmp_path / "toy").iterdir()) == ["1", "2"]


def test_the_command_that_fit_suggests_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The task is not of the package, so the command has to trust it."""
    assert main([*TOY, f"--runs={tmp_path}", "--patience=9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not any("--patience" in line for line in lines)  # it did not end it
    commands = [line.partition("clusterformer ")[2] for line in lines]
    command = next(line for line in commands if line.startswith("test ")).split()
    assert command[-2:] == ["--trust", "toy_task"]
    assert main(command) == 0


def test_test_and_validate_repeat_what_fit_found(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "measured.json"
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    for command, prefix in (("validate", "val"), ("test", "test")):
        capsys.readouterr()
        measure = [command, f"--checkpoint={run}", "--trainer.accelerator=cpu"]
        assert main([*measure, f"--out={out}"]) == 0
        printed = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
        expected = next(row for row in rows if row[f"{prefix}/accuracy"])
        loss = float(expected[f"{prefix}/loss"])
        assert float(printed[f"{prefix}/loss"]) == pytest.approx(loss, abs=1e-4)
        written = json.loads(out.read_text())
        assert written["results"].keys() >= printed.keys()
        assert written["results"][f"{prefix}/loss"] == pytest.approx(loss, rel=1e-6)
        assert written["environment"]["packages"]["torch"] == torch.__version__
    assert "must be a file in a folder" in error_of([*measure, f"--out={tmp_path}"], capsys)
    assert "must be a file in a folder" in error_of([*measure, "--out=nowhere/x.json"], capsys)


def test_options_may_hold_any_character(tmp_path: Path) -> None:
    notes = tmp_path / "\U0001f600 \u00e9\u2028\\ud83d: #'\""
    notes.mkdir()
    assert main([*TOY, f"--runs={tmp_path}", f"--data.notes={notes}"]) == 0
    run = tmp_path / "toy" / "1"
    assert main(["test", f"--checkpoint={run}", "--trainer.accelerator=cpu"]) == 0
    assert main(["fit", f"--resume={run}", "--trainer.max_epochs=2"]) == 0


def test_predict_labels_a_file(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("1 2 3\n4 5 6\n2 2")
    for layout in ("tsv", "jsonl"):
        capsys.readouterr()
        command = ["predict", f"--checkpoint={run}", f"--input={texts}", f"--format={layout}"]
        assert main(command) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 3
        if layout == "jsonl":
            assert set(json.loads(lines[0])) == {"label", "probability"}
        else:
            assert re.fullmatch(r"with(out)?\t0\.\d{4}", lines[0])


def test_predict_answers_each_line_before_the_next_comes(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stdin, writer), (reader, stdout), saved = os.pipe(), os.pipe(), os.dup(0)
    monkeypatch.setattr(sys, "stdout", os.fdopen(stdout, "w"))

    def predict() -> None:
        with sys.stdout:  # closed at the end, whatever happens: nobody waits for more
            assert main(["predict", f"--checkpoint={run}"]) == 0

    os.dup2(stdin, 0)
    try:
        with os.fdopen(writer, "w") as texts, os.fdopen(reader) as answers:
            thread = threading.Thread(target=predict)
            thread.start()
            for text in ("1 2 3", "4 5"):
                print(text, file=texts, flush=True)
                assert answers.readline().startswith("with")
            texts.close()
            thread.join()
            assert not answers.read()
    finally:
        os.dup2(saved, 0)
        os.close(saved)
        os.close(stdin)


def test_a_record_is_a_line_whatever_its_values_hold(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A masked language model may fill a blank with a line end."""
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    predict = ["predict", f"--checkpoint={run}", f"--input={tmp_path / 'texts.txt'}"]
    for record, line in (
        ({"text": "a\tb\r\nc\n"}, "a\tb c "),
        ({"text": "a\tb\nc", "score": 0.5}, "a b c\t0.5000"),
    ):
        found = lambda self, lines, record=record, **_: [record for _ in lines]  # noqa: E731
        monkeypatch.setattr("clusterformer.api.TrainedModel.predict", found)
        capsys.readouterr()
        assert main(predict) == 0
        assert capsys.readouterr().out == f"{line}\n{line}\n"


@pytest.mark.parametrize(
    ("content", "printed"),
    [(b"1 2\n\n3\n", ":2: empty line"), (b"1 2\n\xe9\n", ":2: byte 0xe9 is not UTF-8")],
)
def test_predict_names_the_bad_line_after_labelling_those_before(
    content: bytes, printed: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.txt").write_bytes(content)
    capsys.readouterr()
    assert main(["predict", f"--checkpoint={run}", f"--input={tmp_path / 'texts.txt'}"]) == 2
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert f"texts.txt{printed}" in err


def test_standard_input_that_cannot_be_read_is_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, folder = os.dup(0), os.open(tmp_path, os.O_RDONLY)
    os.dup2(folder, 0)
    try:
        assert main(["predict", f"--checkpoint={run}"]) == 2
    finally:
        os.dup2(saved, 0)
        os.close(saved)
        os.close(folder)
    assert capsys.readouterr().err.endswith("error: standard input: Is a directory\n")


def test_predict_reads_a_pipe(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"1 2\n3\n")
    os.close(writer)
    capsys.readouterr()
    assert main(["predict", f"--checkpoint={run}", f"--input=/dev/fd/{reader}"]) == 0
    os.close(reader)
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_predict_names_an_input_that_cannot_be_read(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, why in (
        (tmp_path, "Is a directory"),
        (tmp_path / "x", "No such file or directory"),
    ):
        message = error_of(["predict", f"--checkpoint={run}", f"--input={path}"], capsys)
        assert message == f"{path}: {why}"


@pytest.mark.parametrize("name", ["empty.txt", "lines.txt", "table.csv"])
def test_a_run_of_another_task_is_refused_whatever_the_input(
    name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("" if name == "empty.txt" else "text\n1 2\n")
    command = ["translate", f"--checkpoint={run}", "--trust=toy_task"]
    message = error_of([*command, f"--input={tmp_path / name}"], capsys)
    assert "best.ckpt: translate needs a run of Translation, this is one of Toy" in message
    assert name not in message


class Harmful:
    def __reduce__(self) -> tuple:
        return (os.mkdir, ("executed",))


def test_a_strange_checkpoint_is_refused_and_not_executed(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = (run / "checkpoints" / "last.ckpt").read_bytes()
    Path("cut.ckpt").write_bytes(whole[: len(whole) // 2])
    Path("empty.ckpt").write_bytes(b"")
    Path("harmful.ckpt").write_bytes(pickle.dumps(Harmful()))
    torch.save({"state_dict": {}, "x": Harmful()}, "harmful-zip.ckpt")
    torch.save({"state_dict": {}}, "foreign.ckpt")
    for name in ("cut", "empty", "harmful", "harmful-zip", "foreign"):
        for command in ("test", "predict"):
            message = error_of([command, f"--checkpoint={name}.ckpt"], capsys)
            assert message.startswith(f"{name}.ckpt: refused")
    assert not Path("executed").exists()
    assert "no such" in error_of(["test", "--checkpoint=missing.ckpt"], capsys)
    assert "give --checkpoint" in error_of(["test"], capsys)


def test_a_truncated_checkpoint_is_not_resumed_from(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("config.yaml", "environment.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").write_bytes(b"PK\x03\x04")
    assert "last.ckpt: refused" in error_of(["fit", f"--resume={tmp_path}"], capsys)


def test_fast_dev_run_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*TOY, "--trainer.fast_dev_run=true"]) == 0
    assert not list(tmp_path.iterdir())


def test_wandb_offline_keeps_one_run_through_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    assert main([*TOY, f"--runs={tmp_path}", "--wandb"]) == 0
    run = tmp_path / "toy" / "1"
    name = json.loads((run / "environment.json").read_text())["wandb_id"]
    assert main(["fit", f"--resume={run}", "--trainer.max_epochs=2"]) == 0
    wandb.teardown()  # what it writes is whole when its service has ended
    logs = list(run.glob(f"wandb/offline-run-*/run-{name}.wandb"))
    assert len(logs) == 2
    assert all(b"seconds_a_step" in log.read_bytes() for log in logs)  # what compare reads


def test_a_run_that_goes_on_with_fewer_data_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--checkpoint_every=2", "--trainer.max_steps=4", "--data.spoil_at=3"]
    assert main([*TOY, f"--runs={tmp_path}", *options]) == 2  # at step 3 of an epoch of 5
    resume = ["fit", f"--resume={tmp_path / 'toy' / '1'}", "--trust=toy_task"]
    resume += ["--data.spoil_at=null"]
    for size, batches in ((16, 2), (8, 1)):
        said = error_of([*resume, f"--data.size={size}"], capsys)
        assert f"behind batch 2 within an epoch, which has {batches} batches now" in said
    assert main([*resume, "--data.size=24"]) == 0


def test_wandb_logs_a_simple_method_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    for name, value in (("MODE", "offline"), ("SILENT", "true"), ("NAME", "a row on a column")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    method = ["--method=always with", f"--runs={tmp_path}", "--wandb"]
    assert main([*TOY, *method]) == 0
    wandb.teardown()
    [log] = (tmp_path / "toy" / "1").glob("wandb/offline-run-*/run-*.wandb")
    for written in (b"a row on a column", b"test/accuracy", b"seconds_a_step"):
        assert written in log.read_bytes()


def test_a_data_file_edited_between_stop_and_resume_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run = tmp_path / "films.csv", tmp_path / "classification" / "1"
    rows = [f"a {word} film {number},{word}" for number in range(16) for word in ("good", "bad")]
    data.write_text("\n".join(["text,label", *rows]))
    options = ["--data=Classification", f"--data.train={data}", "--baselines=false"]
    fit = [option for option in TOY if not option.startswith("--data")]
    assert main([*fit, *options, f"--runs={tmp_path}"]) == 0
    on = ["fit", f"--resume={run}", "--trainer.max_epochs=2"]
    before = data.read_text()
    data.write_text(before.replace("good film", "fine film"))
    said = error_of(on, capsys)
    assert said.startswith(f"{data}: edited since {run} was trained on it; put it back as it was")
    assert not (run / "config-2.yaml").exists()
    data.write_text(before)
    assert main(on) == 0
