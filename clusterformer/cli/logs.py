"""Logging of the command line: our own notes, and few of the libraries' messages."""

from __future__ import annotations

import logging
import sys
import warnings

from clusterformer.training.runs import first_process


class Notes(logging.Handler):
    """A handler that writes plain lines to standard error, in the first process only."""

    def emit(self, record: logging.LogRecord) -> None:
        if first_process():
            print(self.format(record), file=sys.stderr, flush=True)


_NOTES = Notes()


def show_notes() -> None:
    """Show the notes of our own modules, such as how many words have a vector."""
    ours = logging.getLogger("clusterformer")
    ours.setLevel(logging.INFO)
    ours.addHandler(_NOTES)


def quieten() -> None:
    """Silence messages of Lightning that a user can do nothing about."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers",
        ".*could not find the monitored key",
        ".*callbacks used to create the checkpoint need to be provided",
        ".*smaller than the logging interval",
        ".*exists and is not empty",
        ".*your dataloader is not resumable",
        ".*will save all targets and predictions in the buffer",  # of torchmetrics
        ".*LeafSpec",
        ".*treespec",
    ):
        warnings.filterwarnings("ignore", message)
