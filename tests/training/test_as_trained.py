"""A run is used with the options of its training that its weights, or an honest test, need."""

from inspect import isabstract, signature
from pathlib import Path

import pytest

from clusterformer.api import import_tasks
from clusterformer.cli.main import main
from clusterformer.data.file_digests import file_digests
from clusterformer.errors import InputError
from clusterformer.task import Task
from clusterformer.training.as_trained import (
    refuse_former_parts,
    refuse_other_options,
    refuse_other_split,
    refuse_other_validation,
)

TINY = [
    "--data.max_length=2", "--model.attention=FullAttention", "--model.d_model=8",
    "--model.num_heads=2", "--model.num_layers=1", "--trainer.max_steps=1",
    "--trainer.limit_val_batches=1", "--trainer.limit_test_batches=1",
    "--trainer.accelerator=cpu", "--pictures=false", "--baselines=false",
]  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of a tiny training on a fold of mr."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "mr").mkdir()
    lines = (f"{number % 2}\ttext number {number}\n" for number in range(10_662))
    (folder / "mr" / "mr.tsv").write_text("".join(lines))
    return [
        "--data=Classification", "--data.name=mr", f"--data.root={folder}", "--data.fold=1",
        *TINY,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def run(data: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    assert main(["fit", *data, f"--runs={runs}"]) == 0
    (found,) = runs.glob("*/1")
    return found


def test_another_fold_is_refused_whatever_option_names_it() -> None:
    strings = {"name": "fsdd", "strings": {"fold": 2, "min_digits": 5}}
    refuse_other_split(strings, {"name": "fsdd", "strings": {"fold": 2, "min_digits": 1}}, "run")
    refuse_other_split({"name": "mr", "fold": 1}, {"name": "cr", "fold": 3}, "run")
    refuse_other_split({"name": "fsdd", "strings": None}, {"name": "fsdd"}, "run")
    with pytest.raises(InputError, match=r"--data.strings.fold 2: run was trained with 0"):
        refuse_other_split({"name": "fsdd", "strings": None}, strings, "run")
    with pytest.raises(InputError, match=r"--data.fold 0: run was trained with 1"):
        refuse_other_split({"name": "mr", "fold": 1}, {"name": "mr", "fold": 0}, "run")


def test_other_values_of_kept_options_are_refused() -> None:
    trained, rate = {"features": {"rate": 8000, "num_mels": 40}}, {"rate": 16000, "num_mels": 40}
    newer = {"features": {"rate": 8000, "num_mels": 40, "dither": 0.0}, "beam": 8}
    refuse_other_options(["features"], trained, newer, "run")
    refuse_other_options(["features"], {"features": None}, {"features": None}, "run")
    refuse_other_options([], trained, {"features": rate}, "run")
    refuse_other_options(["dither"], trained, {"dither": 0.1}, "run")
    with pytest.raises(InputError, match=r'--data.features: run was .* {"rate": 8000, .*16000'):
        refuse_other_options(["features"], trained, {"features": rate}, "run")
    with pytest.raises(InputError, match="run was trained with its defaults, got"):
        refuse_other_options(["features"], {"features": None}, {"features": rate}, "run")


def test_a_part_of_the_file_that_a_run_was_trained_on_is_refused() -> None:
    files = {"train": "a", "valid": None, "test": "c"}
    refuse_other_split(files, files | {"valid": "b"}, "run")
    refuse_other_split(files, files | {"train": "other", "test": None}, "run")
    refuse_other_split({"name": "mr", "test": None}, {"name": "mr", "test": None}, "run")
    refuse_other_split({"train_source": "a", "test_source": "c"}, {"train_source": "a"}, "run")
    with pytest.raises(InputError, match=r"--data.test null: run was trained with c, .* of a "):
        refuse_other_split(files, files | {"test": None}, "run")
    with pytest.raises(InputError, match=r"--data.valid_source null: run was trained"):
        refuse_other_split({"train_source": "a", "valid_source": "b"}, {"train_source": "a"}, "run")


def test_a_file_that_changes_what_is_held_out_for_another_part_is_refused() -> None:
    files = {"train": "a", "valid": None, "test": None}
    refuse_other_split(files, files | {"valid": "v"}, "run", ["valid"])
    refuse_other_split(files, files | {"test": "t"}, "run", ["test"])
    refuse_other_split(files, files | {"valid": "v", "test": "t"}, "run", ["test"])
    refuse_other_split(files, files | {"train": "b", "valid": "v"}, "run", ["test"])
    refuse_other_split({"name": "mr"}, {"name": "mr"}, "run", ["test"])
    with pytest.raises(
        InputError, match=r"--data.valid v: run .* held out of a to test depends on it"
    ):
        refuse_other_split(files, files | {"valid": "v"}, "run", ["test"])
    with pytest.raises(
        InputError, match=r"--data.test t: run .* held out of a to validate depends"
    ):
        refuse_other_split(files, files | {"test": "t"}, "run")


def test_a_part_that_was_held_out_does_not_train_after_a_resume() -> None:
    files = {"train": "a", "valid": "v", "test": None}
    pairs = {"train_source": "a", "train_target": "b", "valid_source": None}
    refuse_former_parts(files, files, "run")
    refuse_former_parts(files, files | {"valid": "w"}, "run")
    refuse_former_parts(files, files | {"train": "b", "test": "t"}, "run")
    refuse_former_parts({"name": "mr"}, {"name": "mr"}, "run")
    for trained, option in ((files, "test"), (files | {"valid": None}, "valid")):
        told = rf"--data.{option} t: run was .* held out of a to {option}.* would train now"
        with pytest.raises(InputError, match=told):
            refuse_former_parts(trained, trained | {option: "t"}, "run")
    with pytest.raises(InputError, match=r"--data.valid_source c: .* to validate would train"):
        refuse_former_parts(pairs, pairs | {"valid_source": "c"}, "run")


def test_a_best_checkpoint_is_not_chosen_by_validations_of_different_data(tmp_path: Path) -> None:
    for name, text in (("v", "one"), ("moved", "one"), ("w", "other"), ("t", "text")):
        (tmp_path / name).write_text(text)
    v, moved, w, t = (str(tmp_path / name) for name in ("v", "moved", "w", "t"))
    files = {"train": t, "valid": v, "test": None}
    digests = file_digests(files | {"moved": moved})
    refuse_other_validation(files, files | {"train": w, "valid": moved}, digests, "run")
    refuse_other_validation({"name": "mr"}, {"name": "mr"}, {}, "run")
    told = rf"--data.valid {w}: run was validated on {v}, which chose its best"
    with pytest.raises(InputError, match=told):
        refuse_other_validation(files, files | {"valid": w}, digests, "run")
    held_out = files | {"valid": None}
    with pytest.raises(InputError, match=rf"--data.train {w}: run was validated on {t}"):
        refuse_other_validation(held_out, held_out | {"train": w}, digests, "run")
    with pytest.raises(InputError, match=r"--data.name cr: run was validated on mr"):
        refuse_other_validation({"name": "mr"}, {"name": "cr"}, {}, "run")
    pairs = {"train_source": t, "train_target": t, "valid_source": v, "valid_target": v}
    with pytest.raises(InputError, match=rf"--data.valid_target {w}: run was validated"):
        refuse_other_validation(pairs, pairs | {"valid_target": w}, digests, "run")


def test_the_tenth_that_tested_does_not_train_after_a_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{'ab'[number % 2]}\ttext number {number}\n" for number in range(60)]
    for part, rows in (("train", lines[:40]), ("valid", lines[40:50]), ("test", lines[50:])):
        (tmp_path / f"{part}.tsv").write_text("label\ttext\n" + "".join(rows))
    files = [f"--data.{part}={tmp_path / part}.tsv" for part in ("train", "valid", "test")]
    options = [*files[:2], *TINY, f"--runs={tmp_path}"]
    assert main(["fit", "--data=Classification", *options]) == 0
    capsys.readouterr()
    run = str(tmp_path / "classification" / "1")
    assert main(["fit", "--resume", run, "--trainer.max_steps=2", files[2]]) == 2
    assert "was trained without it, and what was held out of" in capsys.readouterr().err
    assert main(["test", "--checkpoint", run, files[2]]) == 0


def test_no_text_that_a_run_was_trained_on_tests_it(
    data: list[str], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["test", "--checkpoint", str(run), "--data.fold=1"]) == 0
    capsys.readouterr()
    for command in (
        ["test", "--checkpoint", str(run)],
        ["validate", "--checkpoint", str(run)],
        ["fit", "--resume", str(run), "--trainer.max_steps=2"],
        ["fit", *data, f"--model.init_from={run}", f"--runs={tmp_path / 'others'}"],
    ):
        assert main([*command, "--data.fold=3"]) == 2
        error = capsys.readouterr().err
        assert "--data.fold 3" in error
        assert "was trained with 1" in error


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["test", "--checkpoint"], "lowercase=false"),
        (["test", "--checkpoint"], "vectors=a.txt"),
        (["fit", "--trainer.max_steps=2", "--resume"], "tokenizer=bpe"),
    ],
)
def test_an_option_that_the_checkpoint_has_learnt_with_cannot_change(
    command: list[str], option: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, str(run), f"--data.{option}"]) == 2
    error = capsys.readouterr().err
    assert f"--data.{option.partition('=')[0]}: {run}" in error
    assert "leave the option out" in error


def test_no_part_of_the_training_file_that_a_run_was_trained_on_tests_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{'ab'[number % 2]}\ttext number {number}\n" for number in range(60)]
    for part, rows in (("train", lines[:40]), ("test", lines[40:])):
        (tmp_path / f"{part}.tsv").write_text("label\ttext\n" + "".join(rows))
    files = [f"--data.{part}={tmp_path / part}.tsv" for part in ("train", "test")]
    runs = tmp_path / "runs"
    assert main(["fit", "--data=Classification", *files, *TINY, f"--runs={runs}"]) == 0
    capsys.readouterr()
    assert main(["test", "--checkpoint", str(runs / "classification/1"), "--data.test=null"]) == 2
    error = capsys.readouterr().err
    assert f"--data.test null: {runs / 'classification/1'}" in error
    assert "test.tsv" in error


def test_the_tenth_that_validated_does_not_test(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.tsv"
    lines = [f"{'ab'[number % 2]}\ttext number {number}\n" for number in range(40)]
    path.write_text("label\ttext\n" + "".join(lines))
    files = f"--data.train={path}", f"--runs={tmp_path}"
    assert main(["fit", "--data=Classification", *files, *TINY]) == 0
    run = str(tmp_path / "classification" / "1")
    for command, code in (("test", 2), ("validate", 0)):
        capsys.readouterr()
        assert main([command, "--checkpoint", run, f"--data.valid={path}"]) == code
        told = capsys.readouterr().err
        assert (
            (f"--data.valid {path}: " in told) == ("was trained without it" in told) == bool(code)
        )
    path.write_text("label\ttext\n" + "".join(lines[1:]))
    for command in (
        ["test", "--checkpoint", run],
        ["validate", "--checkpoint", run],
        ["bench", "exchange", "--runs", run, "--with", "full"],
        ["bench", "mass", "--reference", run, "--runs", run],
    ):
        assert main(command) == 2
        assert f"{path}: edited since {run} was trained on it" in capsys.readouterr().err
    assert main(["test", "--checkpoint", run, f"--data.test={path}"]) == 0


def subclasses(base: type) -> list[type]:
    return [each for one in base.__subclasses__() for each in (one, *subclasses(one))]


def test_every_option_that_a_run_keeps_is_one_of_its_task() -> None:
    import_tasks()
    tasks = [task for task in subclasses(Task) if not isabstract(task)]
    for task in tasks:
        bases = (base for base in task.__mro__ if issubclass(base, Task))
        options = {name for base in bases for name in signature(base).parameters}
        assert options.issuperset(task.kept_options), task
    assert sum(bool(task.kept_options) for task in tasks) > 5
