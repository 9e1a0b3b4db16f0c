"""A run directory that somebody sent: nothing in it is imported, or written elsewhere, unasked."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from toy_command import TOY, error_of

import clusterformer
from clusterformer.cli.main import main
from clusterformer.errors import InputError
from clusterformer.training.checkpoints import CHECKPOINT_KEY

Config = dict[str, Any]
CODE = """
from pathlib import Path
from clusterformer.attention import FullAttention
Path(__file__).with_name("executed").touch()
class Foreign(FullAttention): ...
"""


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as somebody trained it."""
    runs = tmp_path_factory.mktemp("sent")
    assert main([*TOY, "--model.attention=FullAttention", f"--runs={runs}"]) == 0
    return runs / "toy" / "1"


@pytest.fixture
def run(sent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run in a folder where a module of another name lies, ready to be imported."""
    monkeypatch.chdir(tmp_path)
    for path in (Path(f"foreign{tmp_path.name}.py".replace("-", "_")), Path("other.yaml")):
        path.write_text(CODE if path.suffix == ".py" else "class_path: foreign.Foreign\n")
    return shutil.copytree(sent, tmp_path / "runs" / "toy" / "1")


def foreign(tmp_path: Path) -> str:
    """Name a class in the working folder that nobody has imported."""
    return f"foreign{tmp_path.name}.Foreign".replace("-", "_")


def edit(run: Path, change: Callable[[Config], object]) -> None:
    path = run / "config.yaml"
    config = yaml.safe_load(path.read_text())
    change(config)
    path.write_text(yaml.safe_dump(config))


CLASSES: dict[str, Callable[[Config, str], object]] = {
    "a mechanism": lambda config, name: config["model"].update(attention={"class_path": name}),
    "its short form": lambda config, name: config["model"].update(attention=name),
    "a file": lambda config, name: config["model"].update(attention="other.yaml"),
    "a dotted key": lambda config, name: config["model"].update({"attention.class_path": name}),
    "a dotted section": lambda config, name: config.update({"model.attention": name}),
    "a task": lambda config, name: config["data"].update(class_path=name),
    "a task's file": lambda config, name: config.update(data="other.yaml"),
    "an option of the task": lambda config, name: config["data"].update(
        init_args={"size": {"class_path": name}}
    ),
    "a rate": lambda config, name: config["model"].update(lr={"class_path": name}),
    "a seed": lambda config, name: config.update(seed_everything={"class_path": name}),
    "a callback": lambda config, name: config["trainer"].update(callbacks=[{"class_path": name}]),
    "a strategy": lambda config, name: config["trainer"].update(strategy=name),
    "a logger": lambda config, name: config["trainer"].update(logger={"class_path": name}),
    "another model": lambda config, name: config.update(against={"x": {"attention": name}}),
    "a configuration": lambda config, name: config.update(config="other.yaml"),
}


@pytest.mark.parametrize("change", CLASSES.values(), ids=CLASSES)
def test_a_sent_run_imports_nothing(
    change: Callable[[Config, str], object],
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    edit(run, lambda config: change(config, foreign(tmp_path)))
    message = error_of(["fit", f"--resume={run}", "--trainer.max_epochs=2"], capsys)
    assert "config.yaml: refused" in message
    assert not Path("executed").exists()


def test_a_wrong_value_in_a_sent_run_imports_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    neural = "clusterformer.attention.NeuralClusteringAttention"
    wrong = {"class_path": neural, "init_args": {"alpha": foreign(tmp_path)}}
    edit(run, lambda config: config["model"].update(attention=wrong))
    message = error_of(["fit", f"--resume={run}", "--trainer.max_epochs=2"], capsys)
    assert "model.attention.alpha: expected float, got 'foreign" in message
    assert not Path("executed").exists()


def test_testing_a_sent_run_reads_the_configuration_of_its_checkpoint(
    run: Path, tmp_path: Path
) -> None:
    edit(run, lambda config: CLASSES["a mechanism"](config, foreign(tmp_path)))
    assert main(["test", f"--checkpoint={run}"]) == 0
    assert not Path("executed").exists()


@pytest.mark.parametrize("change", list(CLASSES.values())[:4], ids=list(CLASSES)[:4])
def test_a_checkpoint_imports_nothing(
    change: Callable[[Config, str], object], run: Path, tmp_path: Path
) -> None:
    path = run / "checkpoints" / "best.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    config = yaml.safe_load(checkpoint[CHECKPOINT_KEY]["config"])
    change(config, foreign(tmp_path))
    checkpoint[CHECKPOINT_KEY]["config"] = yaml.safe_dump(config)
    torch.save(checkpoint, path)
    with pytest.raises(InputError, match=r"best\.ckpt: refused"):
        clusterformer.load(run)
    assert not Path("executed").exists()


def test_a_class_that_the_user_names_is_imported(run: Path, tmp_path: Path) -> None:
    name = foreign(tmp_path)
    edit(run, lambda config: CLASSES["a mechanism"](config, name))
    longer = ["fit", f"--resume={run}", "--trainer.max_epochs=2"]
    assert main([*longer, f"--trust={name.partition('.')[0]}"]) == 0
    assert main([*longer[:2], "--trainer.max_epochs=3", f"--model.attention={name}"]) == 0
    assert Path("executed").exists()


def test_several_packages_are_trusted_in_either_way(run: Path, tmp_path: Path) -> None:
    edit(run, lambda config: CLASSES["a mechanism"](config, foreign(tmp_path)))
    package = foreign(tmp_path).partition(".")[0]
    longer = ["fit", f"--resume={run}"]
    for epochs, trust in ((2, [f"other,{package}"]), (3, [package, "other"])):
        options = [f"--trust={name}" for name in trust]
        assert main([*longer, f"--trainer.max_epochs={epochs}", *options]) == 0


WRITERS: list[Config] = [
    {"default_root_dir": "elsewhere"},
    {"profiler": "pytorch"},
    {"model_registry": "a"},
    {"callbacks": [{"class_path": "lightning.pytorch.callbacks.ModelCheckpoint"}]},
    {"logger": {"class_path": "lightning.pytorch.loggers.CSVLogger"}},
    {"profiler": {"class_path": "lightning.pytorch.profilers.SimpleProfiler"}},
]


@pytest.mark.parametrize("options", WRITERS, ids=str)
def test_a_sent_run_chooses_no_writer(
    options: Config, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(run, lambda config: config["trainer"].update(options))
    before = set(tmp_path.rglob("*"))
    assert "config.yaml: refused" in error_of(["fit", f"--resume={run}"], capsys)
    assert set(tmp_path.rglob("*")) == before


def test_an_option_that_the_user_gives_counts(run: Path) -> None:
    edit(run, lambda config: config["trainer"].update(default_root_dir="elsewhere"))
    mine = ["--trainer.default_root_dir=mine", "--trainer.max_epochs=2"]
    assert main(["fit", f"--resume={run}", *mine]) == 0


@pytest.mark.parametrize("name", ["metrics.csv", "checkpoints/last.ckpt", ".config.yaml.new"])
def test_a_link_out_of_a_run_is_not_written_through(
    name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, link = tmp_path / "precious", run / name
    shutil.copy(link, target) if link.exists() else target.write_text("precious")
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    before = target.read_bytes()
    message = error_of(["fit", f"--resume={run}", "--trainer.max_epochs=2"], capsys)
    assert f"{name}: refused, a link that leads out" in message
    assert target.read_bytes() == before
