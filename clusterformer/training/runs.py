"""Run directories: runs/NAME/NUMBER holds everything that one training writes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from clusterformer.data.file_digests import edited, file_digests
from clusterformer.errors import InputError, reading
from clusterformer.training.config_files import to_yaml
from clusterformer.training.environment import describe_environment, time_now
from clusterformer.whole_files import write_text

OUTCOME = "outcome"
"""Key of W&B's summary of a run that holds what results.json does, as JSON."""

_STARTS = 1000  # attempts at a new directory, beside others


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
        for _ in range(_STARTS):
            # another start may take the number, or be cancelled and remove the family
            with suppress(FileExistsError, FileNotFoundError):
                return cls(_new_folder(family))
        return cls(_new_folder(family))  # which raises what is wrong

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
        if path.is_dir() and path.name.isdigit():
            raise InputError(f"{folder}: no training began here; start it again with --config")
        what = "holds no config.yaml" if path.exists() else "does not exist"
        raise InputError(f"{folder}: {what}; a run directory looks like runs/NAME/NUMBER")

    def refuse_links(self) -> None:
        """Refuse a directory from which a link leads out: training would write to another folder.

        Raises:
            InputError: with the link.
        """
        inside = self.folder.resolve()
        for path in self.folder.rglob("*"):
            if path.relative_to(self.folder).parts[0] == "wandb":  # its own logs; links by design
                continue
            if path.is_symlink() and not path.resolve().is_relative_to(inside):
                raise InputError(
                    f"{path}: refused, a link that leads out of the run directory; put the file "
                    "itself there to train on"
                )

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
    def chosen(self) -> Path:
        """Checkpoint whose results are those of the run: average, best or last."""
        found = (self.checkpoints / "average.ckpt", self.best)
        return next((path for path in found if path.exists()), self.last)

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
        return self._numbered("config.yaml")[-2]

    @property
    def environments(self) -> list[Path]:
        """Environments of all starts, the first one first."""
        return self._numbered("environment.json")[:-1]

    @property
    def results(self) -> dict[str, Any] | None:
        """Outcome of the latest training that ended here; None if none has."""
        written = self._numbered("results.json")[:-1]
        return json.loads(written[-1].read_text(encoding="utf-8")) if written else None

    @property
    def finished(self) -> bool:
        """True if the latest start came to its end."""
        written = self._numbered("results.json")[:-1]
        if not written:
            return False
        found = None
        with suppress(ValueError, RecursionError):
            found = json.loads(written[-1].read_text(encoding="utf-8"))
        if not isinstance(found, dict):  # a torn file: test again
            return False
        if "config" in found:
            return bool(found["config"] == self.config.name)
        # of an earlier version: by the clocks, which may differ between starts
        return written[-1].stat().st_mtime >= self.config.stat().st_mtime

    @property
    def wandb_id(self) -> str:
        """Identifier of the run at Weights & Biases, the same whenever it is resumed."""
        first = self.folder / "environment.json"
        path = first if first.exists() else self._prepared(first.name)
        with reading(path, "the environment of a run"):
            found = str(json.loads(path.read_text(encoding="utf-8"))["wandb_id"])
        if not re.fullmatch(r"[\w.-]+", found):  # it names a folder
            raise InputError(f"{path}: wandb_id has letters, digits, . _ -, got {found!r:.60}")
        return found

    @property
    def data_digests(self) -> dict[str, str]:
        """Path of each data file, as options wrote it, to its digest at the latest start with it.

        Raises:
            InputError: if the environment of a start is damaged.
        """
        found: dict[str, str] = {}
        for path in self.environments:
            with reading(path, "the environment of a run"):
                found |= json.loads(path.read_text(encoding="utf-8")).get("data", {})
        return found

    def refuse_edited(self, options: Any) -> None:
        """Refuse data files with another content than at the latest start that read them.

        Args:
            options: Options of the data.

        Raises:
            InputError: with the first such file.
        """
        if name := edited(self.data_digests, file_digests(options)):
            raise InputError(
                f"{name}: edited since {self.folder} was trained on it; put it back as it was, or "
                f"begin anew with --config {self.config}"
            )

    def prepare(self, config: Mapping[str, Any]) -> None:
        """Write configuration and environment of a start beside the others, until `confirm`.

        The environment has the digests of the data files too, for `refuse_edited`.
        """
        name = f"{self.folder.parent.name}-{self.folder.name}-{os.urandom(4).hex()}"
        if "WANDB_SWEEP_ID" in os.environ:  # which names its runs itself
            name = os.environ.get("WANDB_RUN_ID", name)
        environment = {
            **describe_environment(),
            "started": time_now(),
            "seed": config.get("seed_everything", 0),
            "wandb_id": name,
            "data": file_digests(config.get("data")),
        }
        text = json.dumps(environment, indent=2, ensure_ascii=False) + "\n"
        write_text(self._prepared("environment.json"), text)
        write_text(self._prepared("config.yaml"), to_yaml(config))

    def confirm(self) -> None:
        """Keep what `prepare` wrote, as config.yaml and environment.json or with a number.

        The configuration comes last: with it, the start counts as begun.
        """
        for name in ("environment.json", "config.yaml"):
            self._prepared(name).replace(self._next(name))

    def cancel(self) -> None:
        """Remove what `prepare` wrote and `confirm` did not keep; an empty directory goes too."""
        for name in ("environment.json", "config.yaml"):
            self._prepared(name).unlink(missing_ok=True)
        if set(self.folder.iterdir()) <= {self._lock}:
            self._lock.unlink(missing_ok=True)
            self.folder.rmdir()
            with suppress(OSError):  # there are other runs, or another start has removed it
                self.folder.parent.rmdir()

    def finish(self, results: dict[str, Any]) -> None:
        """Write the outcome of the training, and which start it is of; whole or not at all."""
        results = {**results, "config": self.config.name}
        path = self._next("results.json")
        write_text(path, json.dumps(results, indent=2) + "\n")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in this directory; a lock ends with its process.

        The file stays: once it is removed, two processes may each lock one of this name.

        Raises:
            InputError: if another process trains in it.
        """
        try:
            held = FileLock(self._lock, timeout=0).acquire()
        except Timeout:
            raise InputError(
                f"{self.folder}: another process trains in this run directory"
            ) from None
        with held:
            yield

    @property
    def _lock(self) -> Path:
        return self.folder / ".lock"

    def _prepared(self, name: str) -> Path:
        return self.folder / f".{name}.new"

    def _numbered(self, name: str) -> list[Path]:
        """Files of this name of all starts, and behind them the next one, not there yet."""
        first = self.folder / name
        paths = [first]
        while paths[-1].exists():
            paths.append(first.with_stem(f"{first.stem}-{len(paths) + 1}"))
        return paths

    def _next(self, name: str) -> Path:
        return self._numbered(name)[-1]


def _new_folder(family: Path) -> Path:
    """Make the folder of the next number."""
    family.mkdir(parents=True, exist_ok=True)
    taken = [int(entry.name) for entry in family.iterdir() if entry.name.isdigit()]
    folder = family / str(max(taken, default=0) + 1)
    folder.mkdir()
    return folder


def first_process() -> bool:
    """Tell whether this process is the one, of those that train together, that writes."""
    return getattr(rank_zero_only, "rank", 0) == 0
