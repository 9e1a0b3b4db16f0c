"""A run is used with the options of its training that its weights, or an honest test, need."""

from pathlib import Path

import pytest

from clusterformer.cli.main import main
from clusterformer.errors import InputError
from clusterformer.training.as_trained import refuse_other_features, refuse_other_fold


def test_another_fold_is_refused_whatever_option_names_it() -> None:
    strings = {"name": "fsdd", "strings": {"fold": 2, "min_digits": 5}}
    refuse_other_fold(strings, {"name": "fsdd", "strings": {"fold": 2, "min_digits": 1}}, "run")
    refuse_other_fold({"name": "mr", "fold": 1}, {"name": "cr", "fold": 3}, "run")
    refuse_other_fold({"name": "fsdd", "strings": None}, {"name": "fsdd"}, "run")
    with pytest.raises(InputError, match=r"--data.strings.fold 2: run was trained with 0"):
        refuse_other_fold({"name": "fsdd", "strings": None}, strings, "run")
    with pytest.raises(InputError, match=r"--data.fold 0: run was trained with 1"):
        refuse_other_fold({"name": "mr", "fold": 1}, {"name": "mr", "fold": 0}, "run")


def test_other_features_are_refused() -> None:
    trained, rate = {"features": {"rate": 8000, "num_mels": 40}}, {"rate": 16000, "num_mels": 40}
    newer = {"features": {"rate": 8000, "num_mels": 40, "dither": 0.0}, "beam": 8}
    refuse_other_features(["features"], trained, newer, "run")
    refuse_other_features(["features"], {"features": None}, {"features": None}, "run")
    refuse_other_features([], trained, {"features": rate}, "run")
    with pytest.raises(InputError, match=r'--data.features: run was .* {"rate": 8000, .*16000'):
        refuse_other_features(["features"], trained, {"features": rate}, "run")
    with pytest.raises(InputError, match="run was trained with its defaults, got"):
        refuse_other_features(["features"], {"features": None}, {"features": rate}, "run")


def test_no_text_that_a_run_was_trained_on_tests_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mr").mkdir()
    lines = (f"{number % 2}\ttext number {number}\n" for number in range(10_662))
    (tmp_path / "mr" / "mr.tsv").write_text("".join(lines))
    options = [
        "--data=Classification", "--data.name=mr", f"--data.root={tmp_path}", "--data.fold=1",
        "--data.max_length=2", "--model.attention=FullAttention", "--model.d_model=8",
        "--model.num_heads=2", "--model.num_layers=1", "--trainer.max_steps=1",
        "--trainer.limit_val_batches=1", "--trainer.limit_test_batches=1",
        "--trainer.accelerator=cpu", "--pictures=false", "--baselines=false",
    ]  # fmt: skip
    assert main(["fit", *options, f"--runs={tmp_path / 'runs'}"]) == 0
    (run,) = (tmp_path / "runs").glob("*/1")
    assert main(["test", "--checkpoint", str(run), "--data.fold=1"]) == 0
    capsys.readouterr()
    for command in (
        ["test", "--checkpoint", str(run)],
        ["validate", "--checkpoint", str(run)],
        ["fit", "--resume", str(run), "--trainer.max_steps=2"],
        ["fit", *options, f"--model.init_from={run}", f"--runs={tmp_path / 'others'}"],
    ):
        assert main([*command, "--data.fold=3"]) == 2
        error = capsys.readouterr().err
        assert "--data.fold 3" in error
        assert "was trained with 1" in error
