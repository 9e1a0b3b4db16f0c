"""Classes of the current folder by name, and what is wrong with them in one line."""

import sys
from pathlib import Path

import pytest
from toy_command import TOY, error_of

from clusterformer.working_folder import WorkingFolder

WRONG = {
    "mypackage.mine.Nope": "mypackage.mine has no class 'Nope'",
    "mypackage.mine.Other": "mypackage.mine.Other is no subclass of",
    "nomodule.X": "cannot import nomodule: neither installed nor in the current folder",
    "nopackage.mine.Other": "cannot import nopackage.mine: neither installed nor",
    "broken.X": "cannot import broken: No module named 'no_such_thing'",
    "wrong.X": "SyntaxError: invalid syntax",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with modules in it."""
    for name in ("mypackage", "nopackage", "wandb"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text("class Other: ...\n")
    (tmp_path / "mypackage" / "__init__.py").touch()
    (tmp_path / "broken.py").write_text("import no_such_thing\n")
    (tmp_path / "wrong.py").write_text("class X(:\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("option", ["--data", "--model.attention"])
@pytest.mark.parametrize(("name", "printed"), WRONG.items())
def test_what_is_wrong_with_a_class_is_one_line(
    option: str, name: str, printed: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = error_of([*TOY, f"{option}={name}"], capsys)
    for module in ("mypackage.mine", "mypackage"):
        sys.modules.pop(module, None)
    assert printed in message
    assert not (folder / "runs").exists()


UNFINISHED = """
from clusterformer.attention import AttentionCore
from clusterformer.task import Task
class MyAttention(AttentionCore): ...
class MyTask(Task): ...
"""


@pytest.mark.parametrize(
    ("option", "name", "method"),
    [("--data", "MyTask", "predictions"), ("--model.attention", "MyAttention", "forward")],
)
def test_an_unfinished_class_is_told_which_methods_it_lacks(
    option: str, name: str, method: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "unfinished.py").write_text(UNFINISHED)
    message = error_of([*TOY, f"{option}=unfinished.{name}"], capsys)
    assert f"unfinished.{name} lacks methods: " in message
    assert method in message


NEEDY = """
from clusterformer.attention import FullAttention
from toy_task import Toy
class MyAttention(FullAttention):
    def __init__(self, d_model: int, num_heads: int, *, rank: int) -> None: ...
class MyTask(Toy):
    def __init__(self, rank: int) -> None: ...
"""


@pytest.mark.parametrize(
    ("option", "name"), [("--data", "MyTask"), ("--model.attention", "MyAttention")]
)
def test_a_class_without_an_option_that_it_needs_says_which(
    option: str, name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "needy.py").write_text(NEEDY)
    message = error_of([*TOY, f"{option}=needy.{name}"], capsys)
    assert message == f"{option[2:]}: {name} needs rank; give {option}.rank"


def test_a_folder_without_init_is_no_package(folder: Path) -> None:
    """W&B leaves a folder of its own name, which would stand for the package."""
    finder = WorkingFolder()
    assert finder.find_spec("mypackage", None)
    assert not finder.find_spec("wandb", None)


def test_our_folders_in_a_clone_are_not_found_by_their_bare_names(
    folder: Path,
) -> None:
    for name in ("kernels", "clusterformer"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
    assert not WorkingFolder().find_spec("kernels", None)
    (folder / "clusterformer" / "__init__.py").unlink()
    assert WorkingFolder().find_spec("kernels", None)
