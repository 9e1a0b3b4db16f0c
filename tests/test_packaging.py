"""The wheel holds everything and works anywhere, and so does `python -m` at the repository root."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "clusterformer", "tasks", "kernels", "configs")
PACKAGES = (
    "clusterformer.attention",
    "clusterformer.configs",
    "clusterformer.kernels",
    "clusterformer.tasks",
)
FIT = ("-m", "clusterformer", "fit", "--config", "quickstart.yaml")


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so nothing left in build/ gets in."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=ignore)
        else:
            shutil.copy(ROOT / name, source)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps")
    run(*pip, "--no-build-isolation", "--wheel-dir", out, source, cwd=out)
    (built,) = out.glob("*.whl")
    return built


def test_wheel_holds_every_module_and_configuration(wheel: Path) -> None:
    expected = {"clusterformer/py.typed"}
    for folder, prefix in (
        ("clusterformer", "clusterformer"),
        ("tasks", "clusterformer/tasks"),
        ("kernels", "clusterformer/kernels"),
        ("configs", "clusterformer/configs"),
    ):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".yaml", ".tsv"}:
                expected.add(f"{prefix}/{path.relative_to(ROOT / folder).as_posix()}")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == expected


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of an environment with the wheel and the dependencies of this environment."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(home, symlinks=os.name != "nt")
    folder = home / ("Scripts" if os.name == "nt" else "bin")
    python = folder / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps")
    run(*pip, wheel, cwd=home)
    # the folders of the dependencies, without the hook of their editable install of this package
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home)
    folders = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    Path(site.strip(), "dependencies.pth").write_text("\n".join(folders), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_wheel_works_away_from_the_repository(scripts: Path, tmp_path: Path) -> None:
    python = scripts / "python"
    where = run(
        python, "-c", f"import {', '.join(PACKAGES)} as last; print(last.__file__)", cwd=tmp_path
    )
    assert Path(where.strip()).is_relative_to(scripts.parent)
    assert "fit" in run(scripts / "clusterformer", "--help", cwd=tmp_path)
    printed = run(python, *FIT, "--print_config", cwd=tmp_path)
    assert "class_path" in printed


MINE = """
from clusterformer.attention import FullAttention
from clusterformer.tasks.classification import Classification


class MyAttention(FullAttention):
    pass


class MyTask(Classification):
    pass
"""
LOAD = "import clusterformer; print(clusterformer.load('runs/mytask/1', trust=['mypackage'])"


@pytest.mark.slow
@pytest.mark.parametrize("command", [["clusterformer"], ["python", "-m", "clusterformer"]])
def test_classes_of_the_current_folder_work(
    command: list[str], scripts: Path, tmp_path: Path
) -> None:
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "__init__.py").touch()
    (tmp_path / "mypackage" / "mine.py").write_text(MINE)
    (tmp_path / "rows.tsv").write_text("".join(f"{i % 2}\tword {i}\n" for i in range(40)))
    (tmp_path / "texts.txt").write_text("word 3\n")
    name, *words = command
    start = (scripts / name, *words)
    data = ["--data=mypackage.mine.MyTask", "--data.train=rows.tsv", "--data.text_column=2"]
    model = ["--model.attention=mypackage.mine.MyAttention", "--data.label_column=1"]
    small = ["--model.d_model=8", "--model.num_heads=2", "--model.num_layers=1"]
    once = ["--trainer.max_steps=1", "--trainer.accelerator=cpu"]
    run(*start, "fit", *data, *model, *small, *once, cwd=tmp_path)
    predict = ("predict", "--checkpoint=runs/mytask/1", "--input=texts.txt", "--trust=mypackage")
    label = run(*start, *predict, cwd=tmp_path).split("\t")[0]
    assert label in ("0", "1")
    loaded = run(scripts / "python", "-c", f"{LOAD}.predict(['word 3'])[0]['label'])", cwd=tmp_path)
    assert loaded.strip() == label


AFTER_MAIN = """
import contextlib, os, runpy, sys
sys.path[0] = os.getcwd()  # as `python -m` has it
sys.argv = ["clusterformer", "--help"]
with contextlib.suppress(SystemExit):
    runpy.run_module("clusterformer", run_name="__main__", alter_sys=True)
"""


def test_main_takes_the_repository_off_the_path() -> None:
    program = (
        AFTER_MAIN + "print('found:', [p for p in sys.path if os.path.abspath(p) == os.getcwd()])"
    )
    assert run(sys.executable, "-c", program, cwd=ROOT).splitlines()[-1] == "found: []"


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("transformers"), reason="needs transformers beside us")
def test_transformers_works_beside_us_at_the_repository_root() -> None:
    program = AFTER_MAIN + "from transformers import BertModel; print(BertModel.__name__)"
    assert run(sys.executable, "-c", program, cwd=ROOT).splitlines()[-1] == "BertModel"
