"""The commit of what runs, for clones and for copies installed from them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from clusterformer.training import source
from clusterformer.training.environment import describe_environment


def git(clone: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    done = subprocess.run(
        ["git", "-C", str(clone), *identity, *arguments],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


def install(clone: Path, target: Path) -> Path:
    """Copy as pip does: tasks/ stands inside the package."""
    shutil.copytree(clone / "clusterformer", target)
    shutil.copytree(clone / "tasks", target / "tasks")
    return target


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    for name in ("clusterformer/module.py", "tasks/nli.py", "docs/page.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("1\n")
    git(tmp_path, "init", "-q", str(folder))
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    return folder


def test_an_installed_copy_knows_the_commit_that_it_was_made_from(clone: Path) -> None:
    first = git(clone, "rev-parse", "HEAD")
    package = install(clone, clone.parent / "site" / "clusterformer")
    assert source.commit_of_files(package, clone) == first
    (clone / "docs" / "page.md").write_text("2\n")  # nothing that is installed
    git(clone, "commit", "-qam", "second")
    assert source.commit_of_files(package, clone) == git(clone, "rev-parse", "HEAD")
    second = git(clone, "rev-parse", "HEAD")
    for number in range(3):
        (clone / "tasks" / "nli.py").write_text(f"{number + 2}\n")
        (clone / "clusterformer" / f"new{number}.py").write_text("3\n")
        git(clone, "add", "-A")
        git(clone, "commit", "-qm", "later")
    assert source.commit_of_files(package, clone) == second
    (package / "module.py").write_text("changed by hand\n")
    assert source.commit_of_files(package, clone) is None


def test_the_record_names_commit_command_machine_and_versions() -> None:
    found = describe_environment()
    assert found["commit"] is None or len(found["commit"].rstrip("+")) == 40
    assert found["command"].startswith("clusterformer")
    assert found["cpus"] >= 1
    assert found["packages"]["torch"]
