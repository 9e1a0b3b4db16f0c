"""metrics.csv of a run directory: whole after a kill at any moment, continued by a resumed run."""

from __future__ import annotations

import csv
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from clusterformer.errors import InputError
from clusterformer.whole_files import replacing

_log = logging.getLogger(__name__)


class MetricsFile(Logger):
    """A logger that writes each row at once, in the form of Lightning's CSVLogger.

    A row that comes twice in succession, before and after a checkpoint, is written once.

    Args:
        path: Path of the file.
        step: First step of this start. Rows of an earlier start from this step on are dropped:
            training repeats these steps.
    """

    def __init__(self, path: Path, step: int = 0) -> None:
        super().__init__()
        self._path = path
        self._columns = ["step"]
        self._last: dict[str, float] = {}
        self._earlier: list[dict[str, Any]] | None = None  # rows to keep, until the first is logged
        if path.exists():
            with path.open(encoding="utf-8", errors="replace", newline="") as file:
                reader = csv.DictReader(line.replace("\0", "") for line in file)
                rows = list(reader)
                self._columns = list(reader.fieldnames or self._columns)
            if "step" not in self._columns:
                raise InputError(
                    f"{path}: not the metrics of a run, it has no column step; move it away"
                )
            whole = [row for row in rows if _is_whole(row)]
            if len(whole) < len(rows):
                _log.info("%s: left out %d torn rows", path, len(rows) - len(whole))
            self._earlier = [row for row in whole if int(row["step"]) < step]

    @property
    def name(self) -> str:
        return ""

    @property
    def version(self) -> str:
        return ""

    @property
    def save_dir(self) -> str:
        return str(self._path.parent)

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Do nothing: config.yaml holds them."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        row = {"step": step or 0, **{name: float(value) for name, value in metrics.items()}}
        if row == self._last:
            return
        self._last = row
        try:
            self._write(row)
        except OSError as error:
            raise InputError(
                f"{self._path}: cannot be written: {error.strerror}; mend that, and fit --resume"
            ) from error

    def _write(self, row: dict[str, Any]) -> None:
        if self._earlier is not None:
            self._rewrite(self._earlier)
            self._earlier = None
        new = sorted(set(row) - set(self._columns))
        if new or not self._path.exists():
            rows: list[dict[str, Any]] = []
            if self._path.exists():
                with self._path.open(encoding="utf-8", newline="") as file:
                    rows = list(csv.DictReader(file))
            self._columns += new
            self._rewrite([*rows, row])
        else:
            with self._path.open("a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, self._columns).writerow(row)

    def _rewrite(self, rows: list[dict[str, Any]]) -> None:
        with (
            replacing(self._path) as partial,
            partial.open("w", encoding="utf-8", newline="") as file,
        ):
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(rows)


def write_step(trainer: Trainer) -> None:
    """Write the row of this batch, in `on_train_batch_end`, before a checkpoint of it.

    Lightning logs the row later: a run killed in between would miss it for ever.
    """
    loggers = trainer.loggers
    trainer.loggers = [logger for logger in loggers if isinstance(logger, MetricsFile)]
    try:
        trainer._logger_connector.update_train_step_metrics()
    finally:
        trainer.loggers = loggers


def _is_whole(row: dict[str, Any]) -> bool:
    """Tell whether a row has every cell, no more, and the number of its step."""
    return None not in row and None not in row.values() and row["step"].isdecimal()
