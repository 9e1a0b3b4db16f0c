"""Run directories: runs/NAME/NUMBER holds everything that one training writes."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_only

from clusterformer.errors import InputError
from clusterformer.training.environment import describe_environment

OUTCOME = "outcome"
"""Key of W&B's summary of a run that holds what results.json does, as JSON."""


@dataclass(frozen=True)
class Run:
    """The run directory of one training.

    Attributes:
        folder: Path of the directory. It holds config.yaml, environment.json, metrics.csv,
            checkpoints/, pictures/ and, when training has ended, results.json. A training that was
            resumed adds config-2.yaml, environment-2.json and so on.
    """

    folder: Path

    @classmethod
    def create(cls, parent: str | Path, name: str) -> Run:
        """Make a new run directory `parent/name/NUMBER`; two processes never get the same."""
        family = Path(parent) / name
        family.mkdir(parents=True, exist_ok=True)
        taken = [int(entry.name) for entry in family.iterdir() if entry.name.isdigit()]
        number = max(taken, default=0) + 1
        while not _made(family / str(number)):
            number += 1
        return cls(family / str(number))

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """Open a run directory, by its path or by that of a file in it, such as a checkpoint.

        Raises:
            InputError: if it is no run directory of `clusterformer fit`.
        """
        path = Path(folder)
        for candidate in (path, *path.parents[:2]):
            if (candidate / "config.yaml").is_file():
                return cls(candidate)
        what = "holds no config.yaml" if path.exists() else "does not exist"
        raise InputError(f"{folder}: {what}; a run directory looks like runs/NAME/NUMBER")

    @property
    def name(self) -> str:
        """NAME/NUMBER."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def last(self) -> Path:
        """Checkpoint to resume from."""
        return self.checkpoints / "last.ckpt"

    @property
    def best(self) -> Path:
        """Checkpoint with the best validation result."""
        return self.checkpoints / "best.ckpt"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.csv"

    @property
    def pictures(self) -> Path:
        return self.folder / "pictures"

    @property
    def tested(self) -> Path:
        """Folder of the test's report and predictions, of tasks that have them."""
        return self.folder / "test"

    @property
    def config(self) -> Path:
        """Configuration of the latest start."""
        return self._latest("config", ".yaml")

    @property
    def results(self) -> dict[str, Any] | None:
        """Outcome of the latest training that ended here; None if none has."""
        written = self._numbered("results", ".json")[:-1]
        return json.loads(written[-1].read_text(encoding="utf-8")) if written else None

    @property
    def wandb_id(self) -> str:
        """Identifier of the run at Weights & Biases, the same whenever it is resumed."""
        environment = json.loads((self.folder / "environment.json").read_text(encoding="utf-8"))
        return str(environment["wandb_id"])

    def record(self, config: str, seed: int) -> None:
        """Write config.yaml and environment.json, with a number if they are there already."""
        name = f"{self.folder.parent.name}-{self.folder.name}-{os.urandom(4).hex()}"
        if "WANDB_SWEEP_ID" in os.environ:  # which names its runs itself
            name = os.environ.get("WANDB_RUN_ID", name)
        environment = {**describe_environment(), "seed": seed, "wandb_id": name}
        text = json.dumps(environment, indent=2, ensure_ascii=False) + "\n"
        self._next("config", ".yaml").write_text(config, encoding="utf-8")
        self._next("environment", ".json").write_text(text, encoding="utf-8")

    def finish(self, results: dict[str, Any]) -> None:
        """Write the outcome of the training; the file is whole or not there."""
        path = self._next("results", ".json")
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        partial.replace(path)

    def discard_unless_begun(self) -> None:
        """Remove the directory if bad input ended the training before its first file."""
        ours = {self.folder / "config.yaml", self.folder / "environment.json"}
        if set(self.folder.iterdir()) <= ours:
            for path in ours:
                path.unlink(missing_ok=True)
            self.folder.rmdir()
            if not any(self.folder.parent.iterdir()):
                self.folder.parent.rmdir()

    def _numbered(self, stem: str, suffix: str) -> list[Path]:
        paths = [self.folder / f"{stem}{suffix}"]
        while paths[-1].exists():
            paths.append(self.folder / f"{stem}-{len(paths) + 1}{suffix}")
        return paths

    def _latest(self, stem: str, suffix: str) -> Path:
        return self._numbered(stem, suffix)[-2]

    def _next(self, stem: str, suffix: str) -> Path:
        return self._numbered(stem, suffix)[-1]


def _made(folder: Path) -> bool:
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def first_process() -> bool:
    """Tell whether this process is the one, of those that train together, that writes."""
    return getattr(rank_zero_only, "rank", 0) == 0
