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


def test_wheel_works_away_from_the_repository(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "venv"
    venv.create(home, symlinks=os.name != "nt")
    scripts = home / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps")
    run(*pip, wheel, cwd=tmp_path)
    # the dependencies of this environment, without the hook of its editable install
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path)
    folders = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    Path(site.strip(), "dependencies.pth").write_text("\n".join(folders), encoding="utf-8")

    where = run(
        python, "-c", f"import {', '.join(PACKAGES)} as last; print(last.__file__)", cwd=tmp_path
    )
    assert Path(where.strip()).is_relative_to(home)
    assert "fit" in run(scripts / "clusterformer", "--help", cwd=tmp_path)
    printed = run(python, *FIT, "--print_config", cwd=tmp_path)
    assert "class_path" in printed


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


@pytest.mark.skipif(not find_spec("transformers"), reason="needs transformers beside us")
def test_transformers_works_beside_us_at_the_repository_root() -> None:
    program = AFTER_MAIN + "from transformers import BertModel; print(BertModel.__name__)"
    assert run(sys.executable, "-c", program, cwd=ROOT).splitlines()[-1] == "BertModel"
