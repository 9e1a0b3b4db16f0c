"""Edits of the progress of Lightning's loops in a checkpoint."""

from __future__ import annotations

from typing import Any


def continue_epoch(loop: dict[str, Any]) -> None:
    """Edit the progress saved by a validation that ended a training within an epoch.

    Lightning counts the epoch as trained then: it would leave out the rest of it.
    """
    epoch, batch = loop["epoch_progress"], loop["epoch_loop.batch_progress"]
    if epoch["current"]["processed"] < epoch["current"]["ready"] or batch["is_last_batch"]:
        return
    if batch["current"]["ready"]:
        for count in (epoch["current"], epoch["total"]):
            count["processed"] -= 1


def begin_next_epoch(loop: dict[str, Any]) -> None:
    """Edit the progress saved at the end of an epoch so that the next epoch begins.

    With max_steps, Lightning 2.6 resumes every checkpoint as if it were from within an epoch; after
    the last batch of one it would then skip the whole next epoch.
    """
    epoch, batch = loop["epoch_progress"], loop["epoch_loop.batch_progress"]
    if epoch["current"]["processed"] < epoch["current"]["ready"]:
        return
    for count in (epoch["current"], epoch["total"]):
        count["completed"] = count["processed"]
    batch["current"] = dict.fromkeys(batch["current"], 0)
    batch["is_last_batch"] = False
