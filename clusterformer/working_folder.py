"""Classes of the working folder by name: `--data mypackage.MyTask`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

BESIDE = ("tasks", "kernels", "configs")
"""Folders of the repository that are installed inside the package."""


class WorkingFolder(MetaPathFinder):
    """Finds modules and packages (with `__init__.py`) of the working folder, after all others.

    The folder is not put on `sys.path`: in a clone of this repository, our `tasks` and `kernels`
    would stand for packages of others that look whether these are installed.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a top-level module; those inside a package are found by the package."""
        folder = Path.cwd()
        in_clone = (folder / "clusterformer" / "__init__.py").is_file()
        if path is not None or (in_clone and name in BESIDE):
            return None
        found = PathFinder.find_spec(name, [str(folder)])
        # a folder without __init__.py, such as the wandb/ of W&B, is no package
        return found if found and found.loader else None


def import_from_working_folder() -> None:
    """Let modules of the working folder be imported, if none elsewhere has their name."""
    if not any(isinstance(finder, WorkingFolder) for finder in sys.meta_path):
        sys.meta_path.append(WorkingFolder())
