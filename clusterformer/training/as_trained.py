"""The fold of a trained run: the examples of every other fold's test trained it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterformer.errors import InputError


def refuse_other_fold(trained: Mapping[str, Any], used: Mapping[str, Any], run: object) -> None:
    """Refuse to go on with, or to measure, a run on another fold than that of its training.

    Args:
        trained: Options of the task with which the run was trained.
        used: Those to be used now.
        run: Name of the run, for the message.

    Raises:
        InputError: if both read the same data set by different folds.
    """
    if trained.get("name") != used.get("name"):
        return
    before, now = _folds(trained), _folds(used)
    for option in before | now:
        one, other = before.get(option, 0), now.get(option, 0)
        if one != other:
            raise InputError(
                f"--data.{option} {other}: {run} was trained with {one}, so examples of the test "
                f"of fold {other} were in its training; leave the option out, or train with it"
            )


def _folds(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values of the options called `fold`, however deep; one that is not there has its default, 0.

    Names are as on the command line, without `--data.`.
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name == "fold":
            found[prefix + name] = value
        elif isinstance(value, Mapping):
            found |= _folds(value, f"{prefix}{name}.")
    return found
