"""The command line: help, options, and errors in one line."""

import importlib
import io
import logging
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from toy_command import TOY, error_of
from toy_task import Toy

from clusterformer import attention
from clusterformer.cli.bench import SUBCOMMANDS
from clusterformer.cli.main import COMMANDS, main
from clusterformer.cli.options import Options
from clusterformer.errors import InputError
from clusterformer.models.decoder import Decoder


@pytest.mark.parametrize(("given", "kept"), [("1", 1), ("1.0", 1.0), ("0.5", 0.5), ("7", 7)])
def test_one_batch_is_a_number_and_one_point_zero_all(given: str, kept: float) -> None:
    limits = [f"--trainer.limit_test_batches={given}", f"--trainer.overfit_batches={given}"]
    trainer = Options([*TOY[1:], *limits], fitting=True).config.trainer
    for found in (trainer.limit_test_batches, trainer.overfit_batches):
        assert found == kept
        assert type(found) is type(kept)


@pytest.mark.parametrize(
    "command", [[], *([name] for name in COMMANDS), *(["bench", name] for name in SUBCOMMANDS)]
)
def test_help_is_short(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("usage: clusterformer")
    assert len(lines) < 60
    assert max(map(len, lines)) <= 100


def test_help_loads_no_torch() -> None:
    code = """
import sys
from clusterformer.cli.bench import SUBCOMMANDS
from clusterformer.cli.main import COMMANDS, main
for command in [[], *([name] for name in COMMANDS), *(["bench", name] for name in SUBCOMMANDS)]:
    assert main([*command, "--help"]) == 0
    assert not {"torch", "lightning", "jsonargparse"} & set(sys.modules), command
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_module_runs_without_the_working_folder_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text("raise SystemExit('shadowed')")
    (tmp_path / "difflib.py").write_text("raise SystemExit('shadowed')")
    done = subprocess.run(
        [sys.executable, "-m", "clusterformer", "--version"], cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "option",
    [
        ["--help-all"],
        ["--data.help", "Classification"],
        ["--model.attention.help", "FullAttention"],
    ],
)
def test_the_help_of_options_names_the_command(option: list[str], capsys) -> None:
    with suppress(SystemExit):
        main(["fit", *option])
    assert capsys.readouterr().out.startswith("usage: clusterformer ")


def test_every_option_in_the_help_exists() -> None:
    ours = {"--config", "--help-all", "--print_config", "--checkpoint", "--resume", "--input"}
    ours |= {"--format", "--device", "--data", "--nproc-per-node", "--average", "--trust"}
    ours |= {"--report", "--data.test", "--out"}  # of validate and test; of a task with files
    ours |= {"--probabilities", "--text_column", "--first_column", "--second_column"}  # of predict
    options = set(Options(["--data=toy_task.Toy"], fitting=True).parser._option_string_actions)
    nested = {"--data.name", "--data.fold", "--data.root", "--model.attention.num_clusters"}
    for name in ("fit", "validate", "test", "predict"):
        text = importlib.import_module(f"clusterformer.cli.{name}").HELP
        named = set(re.findall(r"--[\w.-]*\w", text))
        assert named <= ours | options | nested, named - ours - options - nested
    task = ["--data=Classification", "--data.name=mr", "--data.fold=3", "--data.root=here"]
    core = ["--model.attention=NeuralClusteringAttention", "--model.attention.num_clusters=16"]
    config = Options([*task, *core], fitting=True).config
    assert config["data.init_args.fold"] == 3
    assert config["model.attention.init_args.num_clusters"] == 16


def test_a_decoder_takes_its_own_mechanism_or_the_strict_form_of_the_encoders() -> None:
    neural = ["--model.attention=NeuralClusteringAttention", "--model.attention.num_clusters=7"]
    toy = ["--data=toy_task.Toy", *neural]
    layers = Decoder(Options(toy, fitting=True).model.transformer_config, cross=True).layers
    core = layers[0].attention.core
    assert (core.causal, core.num_clusters) == (True, 7)
    reader = "--model.cross_attention=KeyClusteringAttention"
    other = [*toy, "--model.decoder_attention=FullAttention", reader]
    layer = Decoder(Options(other, fitting=True).model.transformer_config, cross=True).layers[0]
    found = [type(part.core).__name__ for part in (layer.attention, layer.cross)]
    assert found == ["FullAttention", "KeyClusteringAttention"]


@pytest.mark.parametrize(
    ("monitor", "mode"),
    [("error_rate", "min"), ("word_error_rate", "min"), ("loss", "min"), ("accuracy", "max")],
)
def test_fewer_errors_are_better_whoever_names_the_monitor(monitor: str, mode: str) -> None:
    for data in (["SpeechRecognition", "--data.name=fsdd"], ["Classification", "--data.name=mr"]):
        task = Options(
            [f"--data={data[0]}", data[1], f"--monitor=val/{monitor}"], fitting=True
        ).task
        assert (task.monitor, task.mode) == (f"val/{monitor}", mode)


def test_a_task_knows_the_direction_of_its_own_monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "mode", "min")
    assert Options([*TOY[1:], f"--monitor={Toy.monitor}"], fitting=True).task.mode == "min"


def test_a_wrong_mechanism_is_told_of_those_that_can_be_chosen() -> None:
    importlib.import_module("clusterformer.huggingface.calibration")  # its _Fit is one too
    with pytest.raises(InputError) as error:
        Options(["--data=toy_task.Toy", "--model.attention=NoSuch"], fitting=True)
    listed = set(str(error.value).partition("there is ")[2].split(", "))
    assert listed >= {kind.__name__ for kind in attention.mechanisms()}
    assert listed.isdisjoint({"_Fit", "ParallelClustering", "ParallelFullAttention"})


BAD_OPTIONS = {
    ("--model.ld=1",): "no option --model.ld; did you mean --model.lr?",
    ("--modle.lr=1",): "no option --modle.lr; did you mean --model.lr?",
    ("--lr=1",): "no option --lr; did you mean --model.lr?",
    ("--seed=1",): "no option --seed; did you mean --seed_everything?",
    ("--zzz=1",): "no option --zzz; --help and --help-all list the options",
    ("--learning_rate=1",): "no option --learning_rate; did you mean --model.lr?",
    ("--model.learning_rate=1",): "no option --model.learning_rate; did you mean --model.lr?",
    ("--num_train_epochs=1",): "did you mean --trainer.max_epochs?",
    ("--trainer.gpus=1",): "no option --trainer.gpus; did you mean --trainer.devices?",
    ("--fp16",): "no option --fp16; did you mean --trainer.precision 16-mixed?",
    ("--text_column=a",): "no option --text_column; did you mean --data.text_column?",
    ("--model.attention.num_heads=3",): "'num_heads'; did you mean --model.num_heads? there is",
    ("--model.lr=abc",): "model.lr: expected float, got 'abc'",
    ("--model.norm=middle",): "model.norm: expected 'pre', 'post', got 'middle'",
    ("--trainer.max_epoch=1",): "did you mean --trainer.max_epochs?",
    ("--data.size=x",): "data.size: expected int, got 'x'",
    ("--data.sise=1",): "data: Toy has no option 'sise'; did you mean size? there is batch_size",
    ("--trainer.logger=wandb",): "trainer.logger: no class 'wandb'; give the path of one, such as",
    ("--trainer.logger=CSVLogger",): "trainer.logger: CSVLogger needs save_dir; give --trainer.log",
    ("--data=Toi",): "data: no class 'Toi'; did you mean Toy? there is Classification",
    ("--data.help=Toi",): "data: no class 'Toi'; did you mean Toy? there is Classification",
    ("--model.attention=FulAttention",): "no class 'FulAttention'; did you mean FullAttention?",
    ("--model.attention.num_cluster=4",): "NeuralClusteringAttention has no option 'num_cluster'",
    ("--model.num_heads=3",): "num_heads must divide d_model",
    ("--model.lr=-1",): "lr must be at least 0, got -1",
    ("--model.num_layers=0",): "num_layers must be at least 1, got 0",
    ("--model.schedule=cosine", "--trainer.max_epochs=-1"): "cosine must know when training ends",
    ("--trainer.accelerator=abacus",): "abacus",
    ("--trainer.val_check_interval=999",): "batches of an epoch, 5, got 999; null",
    ("--trainer.limit_test_batches=0.01",): "limit_test_batches must be at least 1/",
    ("--trainer.callbacks=Timer",): "options of config.yaml: ",
    ("stray",): "unexpected argument 'stray'",
    ("--config=nowhere.yaml",): "no configuration 'nowhere.yaml', neither a file nor a shipped one",
    ("--resume=nowhere",): "nowhere: does not exist; a run directory looks like runs/NAME/NUMBER",
    ("--model.decoder_attention=FulAttention",): "model.decoder_attention: no class 'FulAttention'",
    ("--keep=-1",): "keep must be at least 0, got -1",
    ("--checkpoint_every=0",): "checkpoint_every must be at least 1, got 0",
    ("--runs",): "expected",
}


NESTED_OPTIONS = {
    "strech=3": "data.augment: SpecAugment has no option 'strech'; did you mean stretches? there",
    "bands=x": "data.augment.bands: expected int, got 'x'",
}


def test_a_bad_option_of_an_option_of_a_task_names_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fit = ["fit", "--config=spoken-digits.yaml"]
    for option, printed in NESTED_OPTIONS.items():
        assert printed in error_of([*fit, f"--data.augment.{option}"], capsys)
    printed = "data.augment: expected null or its options, bands, band_share, "
    assert printed in error_of([*fit, "--data.augment=none"], capsys)


@pytest.mark.parametrize(("options", "printed"), BAD_OPTIONS.items())
def test_a_bad_option_is_one_line(
    options: tuple[str, ...], printed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed in error_of([*TOY, f"--runs={tmp_path}", *options], capsys)
    assert not list(tmp_path.glob("*/*"))


BAD_CONFIGS = {
    "model:\n  lrr: 1\n": "bad.yaml:2: model: no option 'lrr'; did you mean lr?",
    "model:\n  learning_rate: 1\n": "bad.yaml:2: model: no option 'learning_rate'; did you mean --",
    "model:\n  attention: FullAtention\n": "bad.yaml:2: model.attention: no class 'FullAtention'",
    "data:\n  class_path: toy_task.Toy\n  init_args:\n    sise: 3\n": "bad.yaml:4: data: Toy has",
    "modle:\n  lr: 1\n": "bad.yaml:1: no option 'modle'",
    "model: [\n": "bad.yaml:2: not valid YAML",
    "just text": "bad.yaml: holds no options",
}


@pytest.mark.parametrize(("content", "printed"), BAD_CONFIGS.items())
def test_a_bad_configuration_names_file_and_line(
    content: str, printed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    message = error_of([*TOY, f"--runs={tmp_path}", f"--config={path}"], capsys)
    assert printed in message.replace(f"{tmp_path}/", "")


def test_configurations_overlay_one_another_and_name_the_run(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("data: toy_task.Toy\nmodel: {d_model: 8, num_layers: 1}\n")
    (tmp_path / "wide.yaml").write_text("model: {d_model: 16}\n")
    configs = [f"--config={tmp_path / name}.yaml" for name in ("base", "wide")]
    options = Options([*configs, "--model.lr=0.5"], fitting=True)
    assert options.name == "base-wide"
    model = options.config["model"]
    assert (model["d_model"], model["num_layers"], model["lr"]) == (16, 1, 0.5)


def test_a_flag_wins_over_a_file_that_stands_after_it(tmp_path: Path, capsys) -> None:
    (tmp_path / "toy.yaml").write_text("data: toy_task.Toy\nmodel: {d_model: 8, lr: 0.1}\n")
    for config in ([f"--config={tmp_path}/toy.yaml"], ["--config", f"{tmp_path}/toy.yaml"]):
        model = Options(["--model.lr=0.5", *config], fitting=True).config["model"]
        assert (model["d_model"], model["lr"]) == (8, 0.5)
    assert error_of(["fit", "--model.lr=0.5", "--config"], capsys) == "--config needs a value"


def test_our_notes_are_plain_lines_of_the_first_process(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        Options(["--data=toy_task.Toy"], fitting=True)
    note = logging.getLogger("clusterformer.data.word_vectors").info
    note("vectors for 3 of 4 words")
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    note("vectors again")
    assert capsys.readouterr() == ("", "vectors for 3 of 4 words\n")


def test_fit_without_data_says_what_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert "give --config, such as quickstart.yaml" in error_of(["fit"], capsys)


@pytest.mark.parametrize(
    ("arguments", "near", "meant", "far"),
    [
        (["{}"], "fti", "fit", "there is fit, validate"),
        (["bench", "{}"], "step", "steps", "there is "),
        (["fit", "{}"], "--model.d_modle", "--model.d_model", "--help and --help-all list"),
        (["fit", "--config", "{}"], "quikstart", "quickstart.yaml", "there is "),
        (["fit", "--data", "{}"], "Clasification", "Classification", "there is "),
        (["bench", "{}"], "--lenghts", "--lengths", "--help lists all"),
        (["bench", "--mechanisms", "{}"], "FulAttention", "FullAttention", "there is "),
        (["export", "{}"], "--avarage", "--average", "--help lists all"),
        (["prepare", "{}"], "wikitext", "wikitext2", "there is "),
        (["compare", "{}"], "quikstart", "quickstart.yaml", "there is "),
        (["compare", "quickstart", "--rows", "{}"], "full atention", "full attention", "there is "),
        (["compare", "quickstart", "--baseline", "{}"], "coupling", "no coupling", "there is "),
    ],
)
def test_an_unknown_name_is_told_of_the_nearest_and_else_of_what_there_is(
    arguments: list[str], near: str, meant: str, far: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = error_of([argument.format(near) for argument in arguments], capsys)
    assert f"; did you mean {meant}?" in told
    unlike = "--zzz" if near.startswith("--") else "zzz"
    told = error_of([argument.format(unlike) for argument in arguments], capsys)
    assert f"; {far}" in told


def test_the_traceback_can_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERFORMER_DEBUG", "1")
    with pytest.raises(ValueError, match="no command"):
        main(["fti"])


def test_a_reader_who_leaves_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(
        sys, "stdout", io.TextIOWrapper(os.fdopen(writer, "wb", 0), write_through=True)
    )
    assert main(["--help"]) == 0
