"""`clusterformer.load`: what a run learnt, from its checkpoint alone, and nothing else from it."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from toy_command import TOY

import clusterformer
from clusterformer.cli.main import main
from clusterformer.errors import InputError
from clusterformer.training.checkpoints import CHECKPOINT_KEY

CPU = ["--trainer.accelerator=cpu", "--trainer.max_epochs=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished training."""
    runs = tmp_path_factory.mktemp("runs")
    assert main([*TOY, f"--runs={runs}"]) == 0
    return runs / "toy" / "1"


def test_a_run_is_ready_to_use(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = clusterformer.load(run, device="cpu")
    records = model.predict(["1 2 3", "4 5 6"])
    assert [set(record) for record in records] == [{"label", "probability"}] * 2
    assert model.predict([]) == []
    assert isinstance(model.network, torch.nn.Module)
    assert not model.network.training
    assert model.config["data"]["class_path"] == "toy_task.Toy"
    capsys.readouterr()
    assert main(["predict", f"--checkpoint={run}", f"--input={_file(run, '1 2 3')}"]) == 0
    label, probability = capsys.readouterr().out.split()
    assert (label, probability) == (records[0]["label"], f"{records[0]['probability']:.4f}")


def _file(folder: Path, text: str) -> Path:
    path = folder / "texts.txt"
    path.write_text(text)
    return path


def test_loading_draws_no_random_number(run: Path) -> None:
    torch.manual_seed(1)
    expected = torch.rand(())
    torch.manual_seed(1)
    clusterformer.load(run)
    assert torch.rand(()) == expected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: clusterformer.load("nowhere"), "nowhere: no such run directory or"),
        (lambda run: clusterformer.load(os.sep), "holds no config.yaml; a run directory"),
        (
            lambda run: clusterformer.load(run, device="abacus"),
            "device is cpu, cuda or a GPU",
        ),
        (lambda run: clusterformer.load(run, average=3), "train with --keep 3"),
        (lambda run: clusterformer.load(run).translate(["x"]), "translate needs a run of Trans"),
        (lambda run: clusterformer.load(run).generate("x"), "generate needs a run of Language"),
        (lambda run: clusterformer.load(run).predict("1 2"), "must be a list, got one text, '1 2'"),
        (
            lambda run: clusterformer.load(run).predict({"text": "1 2"}),
            "must be a list, got a dict",
        ),
        (lambda run: clusterformer.load(run).predict(["1", None]), "input 2: got None, allowed"),
        (lambda run: clusterformer.load(run).predict([b"1 2"]), "input 1: got b'1 2', allowed"),
        (
            lambda run: clusterformer.load(run).predict([{"text": "1"}]),
            "input 1: got {'text': '1'}",
        ),
        (lambda run: clusterformer.load(run).predict([float("nan")]), "input 1: got nan, allowed"),
    ],
)
def test_what_cannot_be_is_one_line(
    call: Callable[[Path], object], message: str, run: Path
) -> None:
    with pytest.raises(InputError, match=message) as error:
        call(run)
    assert "\n" not in str(error.value)


def test_points_are_clustered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    points = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    np.save(tmp_path / "points.npy", points)
    fit = [
        "fit",
        "--pictures=false",
        "--data=Clustering",
        f"--data.name={tmp_path / 'points.npy'}",
        *CPU,
    ]
    assert main([*fit, "--data.n_clusters=3", "--data.merge_at=0", f"--runs={tmp_path}"]) == 0
    model = clusterformer.load(tmp_path / "clustering" / "1")
    records = model.predict(points[:5])
    assert records == model.predict(points[:5].tolist())
    assert all(0 <= record["cluster"] < 3 for record in records)
    with pytest.raises(InputError, match="columns"):
        model.predict([[1.0, 2.0]])
    assert "label points: clusterformer predict" in capsys.readouterr().out
    np.savetxt(tmp_path / "points.csv", points, delimiter=",")
    command = ["predict", f"--checkpoint={tmp_path / 'clustering' / '1'}", "--input"]
    assert main([*command, str(tmp_path / "points.npy")]) == 2
    assert main([*command, str(tmp_path / "points.csv")]) == 2
    for line in capsys.readouterr().err.splitlines():
        assert re.search(
            r"(a NumPy file|a table), allowed are .* a point a line, numbers with", line
        )
    (tmp_path / "points.csv").rename(tmp_path / "points.txt")
    assert main([*command, str(tmp_path / "points.txt")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 200


def _edited(run: Path, folder: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    """A checkpoint whose configuration another hand changed."""
    checkpoint = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)
    ours = checkpoint[CHECKPOINT_KEY]
    config = yaml.safe_load(ours["config"])
    edit(config)
    ours["config"] = yaml.safe_dump(config)
    torch.save(checkpoint, folder / "edited.ckpt")
    return folder / "edited.ckpt"


def _name_attention(name: Any) -> Callable[[dict[str, Any]], object]:
    return lambda config: config["model"].update(attention=name)


STRANGE = {
    "a module of its choice": _name_attention({"class_path": "harmful.Attention"}),
    "a bare name": _name_attention("harmful.Attention"),
    "a function of ours": _name_attention({"class_path": "clusterformer.cli.main.main"}),
    "a task as a mechanism": _name_attention({"class_path": "toy_task.Toy"}),
    "a module inside options": lambda config: config["data"]["init_args"].update(
        notes={"class_path": "harmful.Notes"}
    ),
    "another task": lambda config: config["data"].update(class_path="harmful.Task"),
    "no model": lambda config: config.pop("model"),
    "a number for a model": lambda config: config.update(model=3),
    "a list for data": lambda config: config.update(data=[1]),
    "an unknown option": lambda config: config["model"].update(widht=3),
}


@pytest.mark.parametrize("edit", STRANGE.values(), ids=STRANGE)
def test_a_strange_configuration_is_refused_and_imports_nothing(
    edit: Callable[[dict[str, Any]], object],
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "harmful.py").write_text("open('executed', 'w')\nclass Attention: ...\n")
    monkeypatch.chdir(tmp_path)
    path = _edited(run, tmp_path, edit)
    for load in (clusterformer.load, lambda path: _error_of(["test", f"--checkpoint={path}"])):
        with pytest.raises(InputError) as error:
            load(path)
        assert "\n" not in str(error.value)
    assert not Path("executed").exists()


def _error_of(arguments: list[str]) -> None:
    os.environ["CLUSTERFORMER_DEBUG"] = "1"
    try:
        main(arguments)
    finally:
        del os.environ["CLUSTERFORMER_DEBUG"]


def test_no_other_section_is_used(run: Path, tmp_path: Path) -> None:
    trainer = {"default_root_dir": str(tmp_path / "chosen"), "accelerator": "abacus"}
    path = _edited(run, tmp_path, lambda config: config.update(trainer=trainer))
    assert main(["test", f"--checkpoint={path}"]) == 0
    assert not (tmp_path / "chosen").exists()


STRUCTURES: dict[str, Callable[[dict[str, Any]], object]] = {
    "ours is no mapping": lambda checkpoint: checkpoint.update({CHECKPOINT_KEY: 3}),
    "no weights": lambda checkpoint: checkpoint.pop("state_dict"),
    "weights are numbers": lambda checkpoint: checkpoint.update(state_dict={"a": 3}),
    "no task": lambda checkpoint: checkpoint[CHECKPOINT_KEY].pop("task"),
    "kind is a number": lambda checkpoint: checkpoint[CHECKPOINT_KEY].update(kind=3),
    "config is a list": lambda checkpoint: checkpoint[CHECKPOINT_KEY].update(config=[3]),
    "config is no YAML": lambda checkpoint: checkpoint[CHECKPOINT_KEY].update(config="a: ["),
    "config is a word": lambda checkpoint: checkpoint[CHECKPOINT_KEY].update(config="a"),
    "no config": lambda checkpoint: checkpoint[CHECKPOINT_KEY].update(config=None),
    "seed is a text": lambda checkpoint: checkpoint[CHECKPOINT_KEY].update(seed="x"),
}


@pytest.mark.parametrize("edit", STRUCTURES.values(), ids=STRUCTURES)
def test_a_strange_structure_is_one_line(
    edit: Callable[[dict[str, Any]], object], run: Path, tmp_path: Path
) -> None:
    checkpoint = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)
    edit(checkpoint)
    torch.save(checkpoint, tmp_path / "strange.ckpt")
    with pytest.raises(InputError, match=r"strange\.ckpt: ") as error:
        clusterformer.load(tmp_path / "strange.ckpt")
    assert "\n" not in str(error.value)


MINE = """
from toy_task import Toy

from clusterformer.attention import FullAttention


class MyAttention(FullAttention):
    def __init__(self, d_model: int, num_heads: int, *, causal: bool = False, factor: float = 1.0):
        super().__init__(d_model, num_heads, causal=causal)


class MyTask(Toy):
    pass
"""


def test_classes_of_the_working_folder_need_no_change_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mypackage").mkdir()
    Path("mypackage/__init__.py").touch()
    Path("mypackage/mine.py").write_text(MINE)
    small = [option for option in TOY if not option.startswith("--data=")]
    mine = ["--data=mypackage.mine.MyTask", "--model.attention=mypackage.mine.MyAttention"]
    assert main([*small, *mine, "--model.attention.factor=2"]) == 0
    model = clusterformer.load("runs/mytask/1")  # of a module that is imported
    assert type(model.task).__name__ == "MyTask"
    for name in ("mypackage", "mypackage.mine"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InputError, match="--trust mypackage"):
        clusterformer.load("runs/mytask/1")
    Path("texts.txt").write_text("1 2 3\n")
    predict = ["predict", "--checkpoint=runs/mytask/1", "--input=texts.txt"]
    capsys.readouterr()
    assert main(predict) == 2
    assert "--trust mypackage" in capsys.readouterr().err
    assert main([*predict, "--trust=mypackage"]) == 0
    assert capsys.readouterr().out.startswith("with")
